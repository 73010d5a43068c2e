// Writes TypeScript's types of what the server sends, from the schema that `katz schema` prints:
// katz schema | node messages.mjs > src/server/generated/messages.ts
import { text } from "node:stream/consumers";
import { compile } from "json-schema-to-typescript";

/** Takes away the titles that fields have: each would become a type of its own. */
function untitled(value) {
  if (Array.isArray(value)) return value.map(untitled);
  if (typeof value !== "object" || value === null) return value;
  const fields = Object.entries(value).filter(
    ([name, one]) => name !== "title" || one !== String(one),
  );
  return Object.fromEntries(fields.map(([name, one]) => [name, untitled(one)]));
}

const schema = untitled(JSON.parse(await text(process.stdin)));
const messages = { ...schema, title: "Messages", required: Object.keys(schema.properties) };
process.stdout.write(
  await compile(messages, "Messages", {
    additionalProperties: false,
    bannerComment: "// Made by messages.mjs from `katz schema`: not to be edited.",
    style: { printWidth: 100 },
  }),
);
