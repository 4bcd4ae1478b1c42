// Holds canonical.mjs to the goldens: node check-goldens.mjs GOLDENS. Says how many vectors held; exit code 1 at a fault.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { decode, digest, encode, plain, sha256 } from "./canonical.mjs";

const goldens = process.argv[2];
const BINARY = new Set(["state", "response"]);

// JSON.parse reads numbers as doubles; integers that may not fit become {"$int": digits} first. Strings are skipped whole.
const LONG = /"(?:[^"\\]|\\.)*"|\d{16,}/g;

function load(...path) {
  const text = readFileSync(join(goldens, ...path), "utf8");
  return JSON.parse(text.replace(LONG, (token) => (token[0] === '"' ? token : `{"$int":"${token}"}`)));
}

function value(spelt, member) {
  if (Array.isArray(spelt)) return spelt.map((inner) => value(inner));
  if (typeof spelt === "string") return BINARY.has(member) ? Buffer.from(spelt, "base64") : spelt;
  if (spelt === null || typeof spelt !== "object") return spelt;
  if ("$int" in spelt) return BigInt(spelt.$int);
  if ("$text" in spelt) return spelt.$text.repeat(spelt.$times);
  if ("$base64" in spelt) return repeated(Buffer.from(spelt.$base64, "base64"), spelt.$times);
  return Object.fromEntries(Object.entries(spelt).map(([key, inner]) => [key, value(inner, key)]));
}

const repeated = (unit, times) => Buffer.concat(Array(times).fill(unit));

function bytes(spelt) {
  if (typeof spelt === "string") return Buffer.from(spelt, "base64");
  return Buffer.concat(spelt.map(({ hex, times }) => repeated(Buffer.from(hex, "hex"), times ?? 1)));
}

let held = 0;
function check(name, holds) {
  try {
    holds();
    held += 1;
  } catch (fault) {
    console.error(`${name}: ${fault.message}`);
    process.exitCode = 1;
  }
}

const invocations = new Map();
for (const file of readdirSync(join(goldens, "values"))) {
  for (const vector of load("values", file).vectors) {
    check(`${file}: ${vector.name}`, () => {
      const golden = bytes(vector.canonical);
      const encoded = encode(value(vector.value));
      assert.equal(sha256(encoded).toString("hex"), vector.sha256);
      assert.ok(encoded.equals(golden), "the canonical bytes differ");
      assert.equal(encoded.length, vector.bytes);
      assert.deepEqual(decode(golden), plain(value(vector.value)));
      if (vector.provider_request_sha256) {
        const { request, provider_request_sha256: carried } = value(vector.value);
        assert.equal(Buffer.from(digest(request)).toString("hex"), vector.provider_request_sha256);
        assert.deepEqual(digest(request), carried);
        invocations.set(vector.name, vector);
      }
    });
  }
}

for (const vector of load("frames", "variants.json").vectors) {
  check(`variants.json: ${vector.name}`, () => {
    const again = encode(decode(bytes(vector.frame)));
    assert.equal(sha256(again).toString("hex"), vector.identity_sha256);
    assert.equal(invocations.get(vector.same_as).sha256, vector.identity_sha256);
  });
}

for (const file of readdirSync(join(goldens, "transcripts"))) {
  for (const [at, step] of load("transcripts", file).steps.entries()) {
    if (step.from !== "server") continue;
    check(`${file}: step ${at}`, () => {
      const sent = Buffer.from(step.bytes_base64, "base64");
      assert.equal(sent.readUInt32BE(), sent.length - 4);
      assert.ok(encode(decode(sent.subarray(4))).equals(sent.subarray(4)), "what the daemon says is canonical");
    });
  }
}

console.log(`${held} vectors hold`);
