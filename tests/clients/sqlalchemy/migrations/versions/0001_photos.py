"""Photos and comments"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade():
    # Autogenerate writes the tables, and leaves sequences to you.
    op.execute(sa.schema.CreateSequence(sa.Sequence("photos_id_seq")))
    op.create_table(
        "photos",
        sa.Column("id", sa.BigInteger(), server_default=sa.text("next_id(5, 'photos_id_seq'::regclass)"), nullable=False),
        sa.Column("user_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.execute(sa.schema.CreateSequence(sa.Sequence("comments_id_seq")))
    op.create_table(
        "comments",
        sa.Column("id", sa.BigInteger(), server_default=sa.text("next_id(5, 'comments_id_seq'::regclass)"), nullable=False),
        sa.Column("photo_id", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["photo_id"], ["photos.id"]),
        sa.PrimaryKeyConstraint("id"),
    )


def downgrade():
    op.drop_table("comments")
    op.execute(sa.schema.DropSequence(sa.Sequence("comments_id_seq")))
    op.drop_table("photos")
    op.execute(sa.schema.DropSequence(sa.Sequence("photos_id_seq")))
