from django.contrib.postgres.operations import CreateExtension
from django.db import migrations, models

from ids import IdField, NextId


class Migration(migrations.Migration):
    initial = True
    dependencies = []

    # makemigrations writes the tables, and leaves the extension and the sequences to you.
    operations = [
        CreateExtension("insta_ids"),
        migrations.RunSQL("CREATE SEQUENCE photos_id_seq", "DROP SEQUENCE photos_id_seq"),
        migrations.RunSQL("CREATE SEQUENCE comments_id_seq", "DROP SEQUENCE comments_id_seq"),
        migrations.CreateModel(
            name="Photo",
            fields=[
                ("id", IdField(db_default=NextId(5, "photos_id_seq"), primary_key=True, serialize=False)),
                ("user_id", models.BigIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="Comment",
            fields=[
                ("id", IdField(db_default=NextId(5, "comments_id_seq"), primary_key=True, serialize=False)),
                ("body", models.TextField()),
                ("photo", models.ForeignKey(on_delete=models.CASCADE, to="photos.photo")),
            ],
        ),
    ]
