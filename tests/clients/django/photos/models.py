from django.db import models

from ids import IdField, NextId


class Photo(models.Model):
    id = IdField(primary_key=True, db_default=NextId(5, "photos_id_seq"))
    user_id = models.BigIntegerField()


class Comment(models.Model):
    id = IdField(primary_key=True, db_default=NextId(5, "comments_id_seq"))
    photo = models.ForeignKey(Photo, models.CASCADE)
    body = models.TextField()
