/** Broken and malicious files: each opens or is refused in one line, without side effects. */
import { crc32, deflateSync } from "node:zlib";
import { expect, type Page } from "@playwright/test";
import { downloaded, openFile, openTemplate, test } from "./steps";

interface Hostile {
  readonly name: string;
  readonly content: string | Buffer;
  readonly line?: RegExp; // the expected error, if it is refused
}

const node = (id: unknown, more: object = {}) => ({
  id,
  type: "EmptyLatentImage",
  pos: [0, 0],
  size: [200, 100],
  flags: {},
  order: 0,
  mode: 0,
  inputs: [],
  outputs: [{ name: "LATENT", type: "LATENT", links: [] }],
  properties: {},
  widgets_values: [64, 64, 1],
  ...more,
});
const file = (nodes: unknown[], more: object = {}) =>
  JSON.stringify({
    last_node_id: nodes.length,
    last_link_id: 0,
    nodes,
    links: [],
    groups: [],
    config: {},
    extra: {},
    version: 0.4,
    ...more,
  });

function chunk(kind: string, data: Buffer): Buffer {
  const body = Buffer.concat([Buffer.from(kind, "latin1"), data]);
  const [length, sum] = [Buffer.alloc(4), Buffer.alloc(4)];
  length.writeUInt32BE(data.length);
  sum.writeUInt32BE(crc32(body));
  return Buffer.concat([length, body, sum]);
}

/** Returns a PNG of one pixel, with the text as its workflow if there is one. */
function png(text = ""): Buffer {
  const header = Buffer.from([0, 0, 0, 1, 0, 0, 0, 1, 8, 2, 0, 0, 0]);
  return Buffer.concat([
    Buffer.from([0x89, 0x50, 0x4e, 0x47, 13, 10, 26, 10]),
    chunk("IHDR", header),
    ...(text ? [chunk("tEXt", Buffer.from(`workflow\0${text}`, "latin1"))] : []),
    chunk("IDAT", deflateSync(Buffer.from([0, 255, 0, 0]))),
    chunk("IEND", Buffer.alloc(0)),
  ]);
}

const EVIL = "http://evil.example/x.png";
const SCRIPT = `<img src="${EVIL}" onerror="window.harmed=1"><script>window.harmed=1</script>`;
const nested = (depth: number) =>
  file([node(1)]).replace(
    '"extra":{}',
    `"extra":{"deep":${"[".repeat(depth)}${"]".repeat(depth)}}`,
  );

const FILES: readonly Hostile[] = [
  { name: "empty.json", content: "", line: /is empty/ },
  { name: "cut.json", content: file([node(1)]).slice(0, 90), line: /broken JSON at line 1/ },
  { name: "noise.json", content: Buffer.from([0, 255, 3, 200, 129, 7]), line: /is a binary file/ },
  { name: "number.json", content: "3", line: /is 3, not an object of nodes/ },
  {
    name: "nan.json",
    content: file([node(1)]).replace("64", "NaN"),
    line: /node 1 contains NaN or infinity/,
  },
  {
    name: "newer.json",
    content: file([node(1)], { version: 99 }),
    line: /of version 99, newer than/,
  },
  { name: "twice.json", content: file([node(1), node(1)]), line: /node 1: this id occurs twice/ },
  {
    name: "nameless.json",
    content: file([node(undefined)]),
    line: /expected an object with an id/,
  },
  { name: "typeless.json", content: file([{ id: 1, pos: [0, 0] }]), line: /node 1: type is null/ },
  { name: "nowhere.json", content: file([node(1)], { links: [[7, 98, 0, 99, 3, "IMAGE"]] }) },
  {
    name: "circle.json",
    content: file(
      [1, 2].map((id) =>
        node(id, {
          type: "ImageInvert",
          inputs: [{ name: "image", type: "IMAGE", link: id }],
          outputs: [{ name: "IMAGE", type: "IMAGE", links: [3 - id] }],
        }),
      ),
      {
        links: [
          [1, 2, 0, 1, 0, "IMAGE"],
          [2, 1, 0, 2, 0, "IMAGE"],
        ],
      },
    ),
  },
  { name: "deep.json", content: nested(90) },
  { name: "deeper.json", content: nested(100_000), line: /nested more than 100 levels deep/ },
  {
    name: "proto.json",
    content: file([node(1)]).replace(
      '"extra":{}',
      '"extra":{"__proto__":{"harmed":1},"constructor":{"prototype":{"harmed":1}}}',
    ),
  },
  { name: "titled.json", content: file([node(1, { title: "x".repeat(1_000_000) })]) },
  { name: "script.json", content: file([node(1, { title: SCRIPT })]) },
  {
    name: "colours.json",
    content: file([node(1, { color: `red;background:url(${EVIL})`, bgcolor: `url("${EVIL}")` })]),
  },
  {
    name: "note.json",
    content: file([
      node(1, {
        type: "MarkdownNote",
        outputs: [],
        widgets_values: [`${SCRIPT}\n![there](${EVIL})\n[here](javascript:window.harmed=1)`],
      }),
      node(2, { type: "Note", outputs: [], widgets_values: [SCRIPT] }),
    ]),
  },
  { name: "unknown.json", content: file([node(1, { type: SCRIPT })]) },
  { name: "plain.png", content: png(), line: /is a PNG without a workflow/ },
  {
    name: "damaged.png",
    content: png('{"nodes": ['),
    line: /the workflow inside the picture: broken JSON/,
  },
  {
    name: "cut.png",
    content: png(file([node(1)])).subarray(0, 60),
    line: /is a truncated PNG/,
  },
  { name: "carries.png", content: png(file([node(1)])) },
];

async function settled(page: Page): Promise<void> {
  await page.evaluate(
    () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 30))),
  );
}

test("P0.14 P0.15 broken and hostile files open or are refused in one line; the open document stays", async ({
  page,
  troubles,
}) => {
  const asked: string[] = [];
  page.on("request", (request) => asked.push(request.url()));
  await openTemplate(page, "Text to image");
  const before = await downloaded(page);
  const tabs = page.locator(".tab");
  let open = await tabs.count();
  for (const { name, content, line } of FILES) {
    await openFile(page, name, content);
    if (line) {
      await expect(page.getByRole("alert"), name).toContainText(line);
      expect(await page.getByRole("alert").locator("span").innerText(), name).not.toContain("\n");
      await expect(tabs, name).toHaveCount(open);
      await page
        .getByRole("alert")
        .getByRole("button")
        .first()
        .click()
        .catch(() => {});
    } else {
      await expect(tabs, name).toHaveCount(open + 1);
      await settled(page);
      await page.keyboard.press("Alt+w"); // unchanged, so it closes without a question
      await expect(tabs, name).toHaveCount(open);
    }
    open = await tabs.count();
    expect(await page.evaluate(() => ("harmed" in window ? 1 : 0)), name).toBe(0);
    expect(await page.evaluate(() => ("harmed" in {} ? 1 : 0)), name).toBe(0);
  }
  expect(asked.filter((url) => url.includes("evil.example"))).toEqual([]);
  expect(await downloaded(page)).toEqual(before);
  // only the refusals are logged
  expect(troubles.splice(0).filter((told) => !told.includes("400"))).toEqual([]);
});
