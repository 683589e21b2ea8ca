// Drizzle ORM: ids that the server makes, and where they are rounded.
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { eq, inArray, sql } from 'drizzle-orm'
import pg from 'pg'
import { isRounded, shardOf } from './ids.ts'
import { likes, notes, photos, photosOf } from './schema.ts'
import { db, insertInto, insertMany, withLikes } from './with-drizzle.ts'

after(() => db.$client.end())

test('insert, and find', async () => {
    const [photo] = await db.insert(photos).values({ userId: 31341n }).returning()
    assert.equal(typeof photo.id, 'bigint')
    assert.equal(shardOf(photo.id), 5)
    const found = await db.select({ id: photos.id, userId: photos.userId, shard: sql<number>`id_shard(${photos.id})` })
        .from(photos).where(eq(photos.id, photo.id))
    assert.deepEqual(found, [{ ...photo, shard: 5 }])
    // What passes Drizzle's columns by is as pg has it: a text.
    const { rows } = await db.execute(sql`SELECT id FROM photos WHERE id = ${photo.id}`)
    assert.deepEqual(rows, [{ id: String(photo.id) }])
})

test('insert many', async () => {
    const inserted = await insertMany(Array.from({ length: 1000 }, (_, n) => BigInt(n)))
    const ids = inserted.map((photo) => photo.id)
    assert.equal(new Set(ids).size, 1000)
    assert.ok(ids.every((id) => shardOf(id) === 5))
    assert.deepEqual(await db.select().from(photos).where(inArray(photos.id, ids)).orderBy(photos.id), inserted)
})

test('joins have all digits, relational queries have not', async () => {
    const photo = (await insertMany([1n, 2n])).find(({ id }) => isRounded(id))!
    const liked = await db.transaction((tx) => {
        return tx.insert(likes).values([{ photoId: photo.id }, { photoId: photo.id }]).returning()
    })
    assert.deepEqual(await withLikes(photo.id), liked.map((like) => ({ photos: photo, likes: like })))

    // The server makes JSON of what is nested, with ids as numbers, and pg parses it.
    const where = eq(photos.id, photo.id)
    const nested = await db.query.photos.findFirst({ where, with: { likes: { orderBy: likes.id } } })
    assert.equal(nested!.id, photo.id)
    assert.notDeepEqual(nested!.likes, liked)
    const rounded = (id: bigint) => BigInt(Number(id))
    assert.deepEqual(nested!.likes, liked.map((like) => ({ id: rounded(like.id), photoId: rounded(photo.id) })))

    // Unless it is told to write texts.
    const id = sql<string>`${likes.id}::text`.as('id')
    const texts = await db.query.photos.findFirst({
        where,
        with: { likes: { columns: {}, extras: { id }, orderBy: likes.id } },
    })
    assert.deepEqual(texts, { ...photo, likes: liked.map((like) => ({ id: String(like.id) })) })
})

test('js53 is made for Number', async () => {
    const inserted = await db.insert(notes).values(Array.from({ length: 100 }, () => ({ body: 'note' }))).returning()
    const ids = inserted.map((note) => note.id)
    assert.ok(ids.every(Number.isSafeInteger))
    assert.equal(new Set(ids).size, 100)
    assert.equal(await db.$count(notes, inArray(notes.id, ids)), 100)
    const shards = await db.selectDistinct({ shard: sql<number>`id_shard(${notes.id}, 'js53')` }).from(notes)
    assert.deepEqual(shards, [{ shard: 5 }])
})

test('tables of shards', async () => {
    for (const shard of [3, 4]) {
        const photo = await insertInto(shard, 31341n)
        assert.equal(shardOf(photo.id), shard)
        const table = photosOf(shard)
        assert.deepEqual(await db.select().from(table).where(eq(table.id, photo.id)), [photo])
    }
})

test('what is refused has its SQLSTATE', async () => {
    // Drizzle's own error has that of pg as its cause.
    const refused = (code: string) => (error: any) => error.cause instanceof pg.DatabaseError && error.cause.code === code
    await assert.rejects(db.insert(photos).values(await insertInto(3, 1n)), refused('23514'))

    await db.execute(sql`SELECT insta_ids.fence(4)`)
    await assert.rejects(insertInto(4, 1n), refused('25006'))
})
