from django.contrib import admin

from photos.models import Comment, Photo


class CommentInline(admin.TabularInline):
    model = Comment


@admin.register(Photo)
class PhotoAdmin(admin.ModelAdmin):
    inlines = [CommentInline]
