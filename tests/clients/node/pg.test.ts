// node-postgres: ids as texts, as BigInt, as what they are not, and errors.
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import pg from 'pg'
import { isRounded, shardOf } from './ids.ts'
import { insert, insertMany, json, pool } from './with-pg.ts'

// One that was told nothing of types.
const texts = new pg.Pool()

after(() => Promise.all([pool.end(), texts.end()]))

async function insertRounded(): Promise<bigint> {
    const ids = [await insert(31341n), await insert(31341n)]
    return ids.find(isRounded)!
}

test('an id comes as a text', async () => {
    const { rows: [{ id }] } = await texts.query('INSERT INTO photos (user_id) VALUES (31341) RETURNING id')
    assert.equal(typeof id, 'string')
    const { rows } = await texts.query('SELECT id, id_shard(id) AS shard FROM photos WHERE id = $1', [id])
    assert.deepEqual(rows, [{ id, shard: 5 }])
})

test('or as BigInt', async () => {
    const id = await insert(31341n)
    assert.equal(typeof id, 'bigint')
    assert.equal(shardOf(id), 5)
    const { rows } = await pool.query('SELECT id, user_id, id_shard(id) AS shard FROM photos WHERE id = $1', [id])
    assert.deepEqual(rows, [{ id, user_id: 31341n, shard: 5 }])
})

test('a Number is another id', async () => {
    const id = await insertRounded()
    assert.equal(Number.isSafeInteger(Number(id)), false)
    assert.notEqual(BigInt(Number(id)), id)
    const select = 'SELECT FROM photos WHERE id = $1'
    assert.equal((await pool.query(select, [id])).rowCount, 1)
    assert.equal((await pool.query(select, [String(id)])).rowCount, 1)
    assert.equal((await pool.query(select, [Number(id)])).rowCount, 0)
})

test('JSON has ids as texts', async () => {
    const id = await insertRounded()
    const { rows: [row] } = await pool.query(
        `SELECT to_jsonb(photos) AS wrong, to_jsonb(photos)::text AS digits,
            to_jsonb(photos) || jsonb_build_object('id', id::text) AS photo, id_json(id) AS parts
        FROM photos WHERE id = $1`,
        [id],
    )
    // The server wrote all digits; JSON.parse, which pg calls, rounded them.
    assert.ok(row.digits.includes(`"id": ${id},`), row.digits)
    assert.notEqual(BigInt(JSON.parse(row.digits).id), id)
    assert.notEqual(BigInt(row.wrong.id), id)
    assert.deepEqual(row.photo, { id: String(id), user_id: 31341 })
    assert.equal(row.parts.id, String(id))
    assert.equal(row.parts.shard, 5)

    // And back: JSON has no BigInt.
    assert.throws(() => JSON.stringify({ id }), TypeError)
    assert.equal(json({ id, user: 'kevin' }), `{"id":"${id}","user":"kevin"}`)
})

test('a key is sent without a type', async () => {
    const { rows } = await texts.query(
        'SELECT insta_ids.shard_of($1) AS shard, insta_ids.shard_of($1, 8) AS of_eight, insta_ids.shard_of_text($2) AS of_text',
        [31341, '31341'],
    )
    assert.deepEqual(rows, [{ shard: 45, of_eight: 5, of_text: 18 }])
    await assert.rejects(texts.query('SELECT insta_ids.shard_of($1)', ['kevin']), { code: '22P02' })
})

test('js53 is made for Number', async () => {
    const { rows } = await texts.query(
        "INSERT INTO notes (body) SELECT 'note' FROM generate_series(1, 100) RETURNING id, to_jsonb(notes) AS note",
    )
    for (const { id, note } of rows) {
        assert.equal(String(note.id), id)
        assert.ok(Number.isSafeInteger(note.id))
    }
    const { rows: stored } = await texts.query(
        "SELECT count(*), array_agg(DISTINCT id_shard(id, 'js53')) AS shards FROM notes WHERE id = ANY($1)",
        [rows.map(({ note }) => note.id)],
    )
    assert.deepEqual(stored, [{ count: '100', shards: [5] }])
})

test('many rows by one statement', async () => {
    const rows = await insertMany(Array.from({ length: 5000 }, (_, n) => BigInt(n)))
    const ids = rows.map((row) => row.id)
    assert.equal(new Set(ids).size, 5000)
    assert.ok(ids.every((id) => shardOf(id) === 5))
    const select = 'SELECT id, user_id FROM photos WHERE id = ANY($1) ORDER BY id'
    assert.deepEqual((await pool.query(select, [ids])).rows, rows)
})

test('many sessions', async () => {
    const ids = await Promise.all(Array.from({ length: 500 }, (_, n) => insert(BigInt(n))))
    assert.equal(new Set(ids).size, 500)
    const { rows } = await pool.query('SELECT count(*) FROM photos WHERE id = ANY($1)', [ids])
    assert.deepEqual(rows, [{ count: 500n }])
})

test('what is refused has its SQLSTATE', async () => {
    const refused = (code: string) => (error: unknown) => error instanceof pg.DatabaseError && error.code === code
    const { rows: [{ id }] } = await pool.query("SELECT next_id(6, 'photos_id_seq') AS id")
    await assert.rejects(pool.query('INSERT INTO photos VALUES ($1, 1)', [id]), refused('23514'))

    const { rows: [photo] } = await pool.query('INSERT INTO insta2.photos (user_id) VALUES (1) RETURNING id')
    assert.equal(shardOf(photo.id), 2)
    await pool.query('SELECT insta_ids.fence(2)')
    await assert.rejects(pool.query('INSERT INTO insta2.photos (user_id) VALUES (1)'), refused('25006'))
    // It can be read as before.
    assert.deepEqual((await pool.query('SELECT id FROM insta2.photos')).rows, [photo])
})
