from io import StringIO

from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import DatabaseError, IntegrityError, connection
from django.test import TestCase, TransactionTestCase
from django.urls import reverse

from ids import NextId
from photos.models import Comment, Photo
from posts.models import Post, Reply
from shards import on_shard, shard_of


def rows(query, *arguments):
    with connection.cursor() as cursor:
        cursor.execute(query, arguments)
        return cursor.fetchall()


class Photos(TestCase):
    def stored(self, photos):
        """They have their ids, and no statement is needed to find out."""
        with self.assertNumQueries(0):
            ids = {photo.user_id: photo.pk for photo in photos}
        self.assertEqual(len(set(ids.values())), len(photos))
        found = rows("SELECT user_id, id, id_shard(id) FROM photos_photo WHERE user_id = ANY(%s)", list(ids))
        self.assertEqual(len(found), len(photos))
        # One by one, as unittest takes minutes to say how thousands differ.
        for user, id, shard in found:
            self.assertEqual((id, shard), (ids[user], 5))

    def test_create(self):
        with self.assertNumQueries(1):
            photo = Photo.objects.create(user_id=1000)
        self.stored([photo])
        self.assertEqual(Photo.objects.get(pk=photo.pk), photo)

    def test_save(self):
        photo = Photo(user_id=1001)
        self.assertIsNone(photo.pk)
        with self.assertNumQueries(0):
            photo.full_clean()
        with self.assertRaisesMessage(ValueError, "unsaved related object"):
            Comment(photo=photo, body="too early").save()
        with self.assertNumQueries(2):
            photo.save()
            comment = photo.comment_set.create(body="first")
        self.stored([photo])
        self.assertEqual(Comment.objects.get(photo=photo), comment)
        photo.save()
        self.stored([photo])

    def test_bulk_create(self):
        photos = [Photo(user_id=user) for user in range(2000, 5000)]
        with self.assertNumQueries(1):
            Photo.objects.bulk_create(photos)
        self.stored(photos)
        self.assertEqual(photos, sorted(photos, key=lambda photo: photo.pk))
        Comment.objects.bulk_create(Comment(photo=photo, body="of many") for photo in photos)
        self.assertEqual(Comment.objects.filter(photo__in=photos).count(), 3000)

    def test_admin(self):
        self.client.force_login(User.objects.create_superuser("admin"))
        form = self.client.get(reverse("admin:photos_photo_add"))
        self.assertContains(form, 'name="user_id"')
        self.assertNotContains(form, 'name="id"')
        data = {
            "user_id": 1002,
            "comment_set-TOTAL_FORMS": 2,
            "comment_set-INITIAL_FORMS": 0,
            "comment_set-0-body": "first",
            "comment_set-1-body": "second",
        }
        added = self.client.post(reverse("admin:photos_photo_add"), data)
        self.assertRedirects(added, reverse("admin:photos_photo_changelist"))
        photo = Photo.objects.get(user_id=1002)
        self.stored([photo])
        self.assertEqual([comment.body for comment in photo.comment_set.order_by("pk")], ["first", "second"])
        data |= {"user_id": 1003, "comment_set-INITIAL_FORMS": 2}
        for n, comment in enumerate(photo.comment_set.order_by("pk")):
            data |= {f"comment_set-{n}-id": comment.pk, f"comment_set-{n}-photo": photo.pk}
        changed = self.client.post(reverse("admin:photos_photo_change", args=[photo.pk]), data)
        self.assertRedirects(changed, reverse("admin:photos_photo_changelist"))
        photo.refresh_from_db()
        self.assertEqual(photo.user_id, 1003)
        self.stored([photo])


class Migrations(TestCase):
    databases = ["default", "shards"]

    def test_no_change(self):
        call_command("makemigrations", check=True, dry_run=True, verbosity=0)
        field = Photo._meta.get_field("id")
        default, field.db_default = field.db_default, NextId(6, "photos_id_seq")
        try:
            with self.assertRaises(SystemExit):
                call_command("makemigrations", check=True, dry_run=True, verbosity=0)
        finally:
            field.db_default = default

    def test_sql(self):
        sql = StringIO()
        call_command("sqlmigrate", "photos", "0001", stdout=sql)
        self.assertIn("\"id\" bigint DEFAULT (next_id(5, 'photos_id_seq')) NOT NULL PRIMARY KEY", sql.getvalue())


class Shards(TransactionTestCase):
    databases = ["default", "shards"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        rows("SELECT insta_ids.init(8)")
        with connection.cursor() as cursor:
            cursor.execute("CALL insta_ids.create_shards(0, 3)")
            call_command("migrate_shards")
            cursor.execute("CALL insta_ids.create_shards(4, 7)")
        call_command("migrate_shards")

    def test_migrations(self):
        self.assertEqual(
            rows("SELECT name, state, count(*) FROM insta_ids.migration_status GROUP BY 1, 2 ORDER BY 1"),
            [("posts.0001_initial", "applied", 8), ("posts.0002_of_another", "applied", 8)],
        )
        self.assertEqual(rows("SELECT * FROM insta_ids.check() WHERE severity <> 'notice'"), [])
        self.assertEqual(rows("SELECT to_regclass('posts_post')"), [(None,)])

    def test_shards(self):
        posts = []
        for author in range(1000, 1008):
            with on_shard(shard_of(author)):
                post = Post.objects.create(author=author)
                Reply.objects.bulk_create(Reply(post=post, body=body) for body in ("first", "second"))
                Post.objects.create(author=author, of=post)
            posts.append(post)
        for shard, post in enumerate(posts):
            found = rows(f"SELECT id, id_shard(id), author FROM insta{shard}.posts_post WHERE of_id IS NULL")
            self.assertEqual(found, [(post.pk, shard, 1000 + shard)])
            with on_shard(shard):
                self.assertEqual(Post.objects.get(pk=post.pk), post)
                self.assertEqual(Reply.objects.filter(post=post).count(), 2)
                self.assertEqual(Post.objects.get(of=post).author, post.author)
        self.assertEqual(len({post.pk for post in posts}), 8)

    def test_errors(self):
        """Outside of a shard there is no such table, and in it no id of another one."""
        with self.assertRaisesMessage(DatabaseError, 'relation "posts_post" does not exist'):
            Post.objects.create(author=4)
        [(id,)] = rows("SELECT insta5.next_id()")
        with self.assertRaises(IntegrityError) as refused, on_shard(4):
            Post.objects.create(pk=id, author=4)
        self.assertEqual(refused.exception.__cause__.sqlstate, "23514")
        rows("SELECT insta_ids.fence(6)")
        with self.assertRaises(DatabaseError) as refused, on_shard(6):
            Post.objects.create(author=6)
        self.assertEqual(refused.exception.__cause__.sqlstate, "25006")
        rows("SELECT insta_ids.unfence(6)")
