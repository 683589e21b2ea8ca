// What an id says by itself.

export function shardOf(id: bigint): number {
    return Number((id >> 10n) & 8191n)
}

// Of 512 ids in a row, one is a Number with all its digits.
export function isRounded(id: bigint): boolean {
    return BigInt(Number(id)) !== id
}
