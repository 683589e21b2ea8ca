"""Photos and their comments, whose ids the server makes, by SQLAlchemy 2.1."""

import os

from sqlalchemy import BigInteger, ForeignKey, Sequence, create_engine, func, literal_column
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

POOLED = bool(os.environ.get("POOLED"))

# Where to, libpq's variables say. What is prepared, an older PgBouncer does not find.
engine = create_engine("postgresql+psycopg://", connect_args={"prepare_threshold": None} if POOLED else {})


class Base(DeclarativeBase):
    type_annotation_map = {int: BigInteger}


def next_id(shard, sequence):
    """As PostgreSQL itself writes the default, so that Alembic finds no difference"""
    Sequence(sequence, metadata=Base.metadata)
    return func.next_id(shard, literal_column(f"'{sequence}'::regclass"), monotonic=True)


class Photo(Base):
    __tablename__ = "photos"

    id: Mapped[int] = mapped_column(primary_key=True, server_default=next_id(5, "photos_id_seq"))
    user_id: Mapped[int]
    comments: Mapped[list["Comment"]] = relationship(back_populates="photo")


class Comment(Base):
    __tablename__ = "comments"

    id: Mapped[int] = mapped_column(primary_key=True, server_default=next_id(5, "comments_id_seq"))
    photo_id: Mapped[int] = mapped_column(ForeignKey("photos.id"))
    photo: Mapped[Photo] = relationship(back_populates="comments")
    body: Mapped[str]


def in_shard(shard):
    """A session with the tables of a shard"""
    return Session(engine.execution_options(schema_translate_map={None: f"insta{shard}"}))
