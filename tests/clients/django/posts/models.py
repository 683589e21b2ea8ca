from django.db import models

from ids import IdField, NextId


class Post(models.Model):
    id = IdField(primary_key=True, db_default=NextId())
    author = models.BigIntegerField()
    of = models.ForeignKey("self", models.CASCADE, null=True)


class Reply(models.Model):
    id = IdField(primary_key=True, db_default=NextId())
    post = models.ForeignKey(Post, models.CASCADE)
    body = models.TextField()
