import { relations, sql } from 'drizzle-orm'
import { bigint, check, pgSchema, pgSequence, pgTable, text } from 'drizzle-orm/pg-core'

export const photosIdSeq = pgSequence('photos_id_seq')

export const photos = pgTable('photos', {
    id: bigint('id', { mode: 'bigint' }).primaryKey().default(sql`next_id(5, 'photos_id_seq'::regclass)`),
    userId: bigint('user_id', { mode: 'bigint' }).notNull(),
}, (photos) => [check('photos_shard', sql`id_shard(${photos.id}) = 5`)])

export const likesIdSeq = pgSequence('likes_id_seq')

export const likes = pgTable('likes', {
    id: bigint('id', { mode: 'bigint' }).primaryKey().default(sql`next_id(5, 'likes_id_seq'::regclass)`),
    photoId: bigint('photo_id', { mode: 'bigint' }).notNull().references(() => photos.id),
})

export const photosRelations = relations(photos, ({ many }) => ({ likes: many(likes) }))
export const likesRelations = relations(likes, ({ one }) => ({
    photo: one(photos, { fields: [likes.photoId], references: [photos.id] }),
}))

// The layout js53, as PostgreSQL writes it.
const js53 = sql.raw("'time:41 shard:6 seq:6 epoch:1314220021721'::id_layout")

export const notesIdSeq = pgSequence('notes_id_seq')

export const notes = pgTable('notes', {
    id: bigint('id', { mode: 'number' }).primaryKey().default(sql`next_id(5, 'notes_id_seq'::regclass, ${js53})`),
    body: text('body').notNull(),
})

// The table of a shard. Its DDL is the migrations of the shards, so Drizzle's do not see it.
export const photosOf = (shard: number) => pgSchema(`insta${shard}`).table('photos', {
    id: bigint('id', { mode: 'bigint' }).primaryKey().default(sql`next_id()`),
    userId: bigint('user_id', { mode: 'bigint' }).notNull(),
})
