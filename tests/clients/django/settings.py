import os

SECRET_KEY = "tests"
USE_TZ = True
ROOT_URLCONF = "urls"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "photos",
    "posts",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STATIC_URL = "static/"

SERVER = {
    "ENGINE": "django.db.backends.postgresql",
    "HOST": os.environ["PGHOST"],
    "PORT": os.environ["PGPORT"],
    "USER": os.environ["PGUSER"],
    "NAME": os.environ["PGDATABASE"],
    "TEST": {"NAME": os.environ["PGDATABASE"]},
}
if os.environ.get("POOLED"):
    # PgBouncer in transaction mode gives each transaction another connection, and such a cursor lives in one.
    SERVER["DISABLE_SERVER_SIDE_CURSORS"] = True

DATABASES = {"default": SERVER, "shards": SERVER.copy()}
DATABASE_ROUTERS = ["shards.Router"]
