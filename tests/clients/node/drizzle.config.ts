import { defineConfig } from 'drizzle-kit'

const { PGHOST, PGPORT, PGUSER, PGDATABASE } = process.env

export default defineConfig({
    dialect: 'postgresql',
    schema: './schema.ts',
    out: './migrations',
    dbCredentials: { host: PGHOST!, port: Number(PGPORT ?? 5432), user: PGUSER, database: PGDATABASE!, ssl: false },
})
