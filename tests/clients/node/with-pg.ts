import pg from 'pg'

// All that is bigint comes as BigInt: ids, but count(*), too.
const types = new pg.TypeOverrides()
types.setTypeParser(pg.types.builtins.INT8, BigInt)
export const pool = new pg.Pool({ types })

export async function insert(userId: bigint): Promise<bigint> {
    const { rows } = await pool.query('INSERT INTO photos (user_id) VALUES ($1) RETURNING id', [userId])
    return rows[0].id
}

export async function insertMany(userIds: bigint[]): Promise<{ id: bigint, user_id: bigint }[]> {
    const insert = 'INSERT INTO photos (user_id) SELECT unnest($1::bigint[]) RETURNING id, user_id'
    return (await pool.query(insert, [userIds])).rows
}

export function json(value: unknown): string {
    return JSON.stringify(value, (_, value) => typeof value === 'bigint' ? String(value) : value)
}
