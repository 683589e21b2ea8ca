// drizzle-kit: after its migrations, neither it nor the server sees a difference to the schema.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { test } from 'node:test'

function kit(...args: string[]): string {
    return execFileSync('node_modules/.bin/drizzle-kit', args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] })
}

test('generate has nothing to add', () => {
    assert.match(kit('generate'), /No schema changes/)
})

test('push has nothing to do', () => {
    assert.match(kit('push'), /No changes detected/)
})

test('pull reads the defaults', () => {
    const config = readFileSync('drizzle.config.ts', 'utf8')
    writeFileSync('pull.config.ts', config.replace('./migrations', './pulled'))
    kit('pull', '--config=pull.config.ts')
    const pulled = readFileSync('pulled/schema.ts', 'utf8')
    // Its "number" is what to replace by "bigint".
    const id = 'id: bigint({ mode: "number" }).default(sql`next_id(5, \'photos_id_seq\'::regclass)`)'
    assert.ok(pulled.includes(id), pulled)
})
