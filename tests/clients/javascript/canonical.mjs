// Canonical bytes and digests, on top of @msgpack/msgpack.
import { createHash } from "node:crypto";
import { decode as unpack, encode as pack } from "@msgpack/msgpack";

// The library writes a whole number of 2^32 and above as a double when useBigInt64 is on, and any BigInt with eight
// bytes. So: numbers below 2^32, BigInts from there on. It would also write nil members, and lone surrogates.
function plain(value) {
  if (value === null || value === undefined || typeof value === "boolean") return value ?? null;
  if (typeof value === "string") {
    if (!value.isWellFormed()) throw new TypeError("a lone surrogate is no UTF-8");
    return value;
  }
  if (typeof value === "number" || typeof value === "bigint") {
    if (typeof value === "number" && !Number.isSafeInteger(value)) throw new RangeError(`${value} is no whole number`);
    if (value < 0 || value >= 2n ** 64n) throw new RangeError(`${value} does not fit into 64 bits`);
    return value < 2 ** 32 ? Number(value) : BigInt(value);
  }
  if (value instanceof Uint8Array) return new Uint8Array(value);
  if (Array.isArray(value)) return value.map(plain);
  const members = Object.entries(value).filter(([, member]) => member !== null && member !== undefined);
  return Object.fromEntries(members.map(([key, member]) => [key, plain(member)]));
}

/** A value in the one form that `decode` gives too: nil members left out, small integers as numbers, the rest as BigInts. */
export { plain };

export const encode = (value) => Buffer.from(pack(plain(value), { sortKeys: true, useBigInt64: true }));

export const decode = (bytes) => plain(unpack(bytes, { useBigInt64: true }));

export const sha256 = (bytes) => createHash("sha256").update(bytes).digest();

/** A digest as the wire carries it: 32 integers. */
export const digest = (value) => [...sha256(encode(value))];
