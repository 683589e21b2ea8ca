import { setTimeout } from 'node:timers/promises'
import { DataSource, EntityManager, EntitySchema, type MigrationInterface, QueryFailedError, type QueryRunner } from 'typeorm'

// Ids come as texts, with all digits.
export interface Picture {
    id?: string
    userId: string
}

export const Pictures = new EntitySchema<Picture>({
    name: 'Picture',
    tableName: 'pictures',
    columns: {
        id: { type: 'bigint', primary: true, default: () => "next_id(5, 'pictures_id_seq')" },
        userId: { type: 'bigint', name: 'user_id' },
    },
})

// The table of shards: onShard chooses one.
export const Posts = new EntitySchema<Picture>({
    name: 'Post',
    tableName: 'posts',
    columns: {
        id: { type: 'bigint', primary: true, default: () => 'next_id()' },
        userId: { type: 'bigint', name: 'user_id' },
    },
})

class CreatePictures1795000000001 implements MigrationInterface {
    async up(runner: QueryRunner) {
        await runner.query('CREATE SEQUENCE pictures_id_seq')
        await runner.query(`CREATE TABLE pictures (
            id bigint PRIMARY KEY DEFAULT next_id(5, 'pictures_id_seq'),
            user_id bigint NOT NULL
        )`)
        await runner.query('ALTER SEQUENCE pictures_id_seq OWNED BY pictures.id')
    }

    async down(runner: QueryRunner) {
        await runner.query('DROP TABLE pictures')
    }
}

class AddPosts1795000000002 implements MigrationInterface {
    async up(runner: QueryRunner) {
        await runner.query(`SELECT insta_ids.add_migration('0002 posts', $$
            CREATE TABLE posts (id bigint PRIMARY KEY DEFAULT next_id(), user_id bigint NOT NULL)
        $$)`)
    }

    async down() {
        throw new Error('migrations of shards are not taken back')
    }
}

// migrate commits, so it runs outside of a transaction. After a failure it can be called again.
class MigrateShards1795000000003 implements MigrationInterface {
    transaction = false

    async up(runner: QueryRunner) {
        await runner.query('CALL insta_ids.migrate()')
    }

    async down() {}
}

export const db = new DataSource({
    type: 'postgres',
    host: process.env.PGHOST,
    port: Number(process.env.PGPORT ?? 5432),
    username: process.env.PGUSER,
    database: process.env.PGDATABASE,
    entities: [Pictures, Posts],
    migrations: [CreatePictures1795000000001, AddPosts1795000000002, MigrateShards1795000000003],
    migrationsTransactionMode: 'each',
})

export async function insert(userId: string): Promise<string> {
    const picture = await db.getRepository(Pictures).save({ userId })
    return picture.id!
}

/** The ids come in the order of the users. */
export async function insertMany(userIds: string[]): Promise<string[]> {
    const { identifiers } = await db.getRepository(Pictures).insert(userIds.map((userId) => ({ userId })))
    return identifiers.map(({ id }) => id)
}

/** Runs the work in one transaction, in which the tables are those of this shard. */
export async function onShard<T>(shard: number, work: (manager: EntityManager) => Promise<T>): Promise<T> {
    return db.transaction(async (manager) => {
        const path = "SELECT set_config('search_path', insta_ids.schema_of($1) || ', public', true)"
        await manager.query(path, [shard])
        return work(manager)
    })
}

/** The SQLSTATEs of a server on which the shard is fenced or no longer exists. Nothing was written. */
const MOVED = ['25006', '42P01', '3F000']

/** Does the work again while the shard moves. The work looks up the shard's server each time. */
export async function retry<T>(limit: number, work: () => Promise<T>): Promise<T> {
    const end = Date.now() + limit
    for (let pause = 10; ; pause *= 2) {
        try {
            return await work()
        } catch (error) {
            const isRefused = error instanceof QueryFailedError && MOVED.includes(error.driverError.code)
            if (!isRefused || Date.now() + pause > end) {
                throw error
            }
        }
        await setTimeout(pause)
    }
}
