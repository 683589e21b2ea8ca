// TypeORM: ids that the server makes, shards, and what is refused.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { In, QueryFailedError } from 'typeorm'
import { isRounded, shardOf } from './ids.ts'
import { db, insert, insertMany, onShard, Pictures, Posts, retry } from './with-typeorm.ts'

before(async () => {
    await db.initialize()
    await db.runMigrations()
})
after(() => db.destroy())

const refused = (code: string) => (error: unknown) => error instanceof QueryFailedError && error.driverError.code === code
const pictures = () => db.getRepository(Pictures)

test('insert, and find', async () => {
    const ids = [await insert('31341'), await insert('31341')]
    const id = ids.find((id) => isRounded(BigInt(id)))!
    assert.equal(shardOf(BigInt(id)), 5)
    assert.deepEqual(await pictures().findOneBy({ id }), { id, userId: '31341' })
    // What JSON has is the text.
    assert.equal(JSON.parse(JSON.stringify(await pictures().findOneBy({ id }))).id, id)
})

test('insert many', async () => {
    const users = Array.from({ length: 1000 }, (_, n) => String(n))
    const ids = await insertMany(users)
    assert.equal(new Set(ids).size, 1000)
    assert.ok(ids.every((id) => shardOf(BigInt(id)) === 5))
    const found = new Map((await pictures().findBy({ id: In(ids) })).map(({ id, userId }) => [id, userId]))
    assert.deepEqual(ids.map((id) => found.get(id)), users)
})

test('many sessions', async () => {
    const ids = await Promise.all(Array.from({ length: 200 }, (_, n) => insert(String(n))))
    assert.equal(new Set(ids).size, 200)
})

test('tables of shards', async () => {
    for (const shard of [5, 6]) {
        const post = await onShard(shard, (manager) => manager.save(Posts, { userId: '31341' }))
        assert.equal(shardOf(BigInt(post.id!)), shard)
        const found = await onShard(shard, (manager) => manager.findBy(Posts, { id: post.id }))
        assert.deepEqual(found, [{ id: post.id, userId: '31341' }])
        // Ids of another shard are refused.
        await assert.rejects(onShard(7, (manager) => manager.insert(Posts, post)), refused('23514'))
    }
    // The search_path ended with the transaction.
    await assert.rejects(db.getRepository(Posts).find(), refused('42P01'))
})

test('a fenced shard is tried again', async () => {
    await db.query('SELECT insta_ids.fence(1)')
    let tries = 0
    const add = () => {
        tries++
        return onShard(1, (manager) => manager.save(Posts, { userId: '1' }))
    }
    await assert.rejects(retry(100, add), refused('25006'))
    assert.ok(tries > 1)
    const opened = new Promise((resolve) => setTimeout(() => resolve(db.query('SELECT insta_ids.unfence(1)')), 300))
    const post = await retry(10_000, add)
    await opened
    assert.equal(shardOf(BigInt(post.id!)), 1)
    // Other errors are not tried again.
    tries = 0
    await assert.rejects(retry(1000, () => (tries++, db.query('SELECT 1 / 0'))), refused('22012'))
    assert.equal(tries, 1)
})

test('the schema builder finds no difference', async () => {
    const { upQueries } = await db.driver.createSchemaBuilder().log()
    const ofPictures = upQueries.map(({ query }) => query).filter((query) => query.includes('"pictures"'))
    assert.deepEqual(ofPictures, [])
})
