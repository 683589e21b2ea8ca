import { eq } from 'drizzle-orm'
import { drizzle } from 'drizzle-orm/node-postgres'
import * as schema from './schema.ts'
import { likes, photos, photosOf } from './schema.ts'

export const db = drizzle({ connection: {}, schema })

export async function insertMany(userIds: bigint[]) {
    return db.insert(photos).values(userIds.map((userId) => ({ userId }))).returning()
}

export async function insertInto(shard: number, userId: bigint) {
    const [photo] = await db.insert(photosOf(shard)).values({ userId }).returning()
    return photo
}

export async function withLikes(id: bigint) {
    return db.select().from(photos)
        .leftJoin(likes, eq(likes.photoId, photos.id))
        .where(eq(photos.id, id))
        .orderBy(likes.id)
}
