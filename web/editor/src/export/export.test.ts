import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { catalogOf } from "../catalog/catalog";
import { blank } from "../jobs/reducer";
import { isObject, parseJson, printJson } from "../json";
import { planOf } from "../plan/model/plan";
import { graphDrawing } from "./graphDrawing";
import { element, line, linesOf } from "./svg";
import { timelineDrawing } from "./timelineDrawing";
import { traceOf } from "./trace";

const paint = (variable: string, classes = "") => `${variable} ${classes}`.trim();
const file = (name: string) => readFileSync(new URL(name, import.meta.url), "utf8");

/** Checks that elements are closed in order, and that no text opens one. */
function expectWellFormed(svg: string): void {
  const open: string[] = [];
  for (const [, end, name] of svg.matchAll(/<(\/?)([a-z]+)(?: [a-z0-9-]+="[^"<]*")*>/gi))
    if (end === "/") expect(open.pop()).toBe(name);
    else open.push(name ?? "");
  expect(open).toEqual([]);
  expect(svg.replaceAll(/<\/?[a-z]+(?: [a-z0-9-]+="[^"<]*")*>/gi, "")).not.toMatch(/[<>]/);
}

test("P1.25 texts in drawings are escaped and cut to their width", () => {
  expect(line('<script>"&\u0000', 999, { x: 1 })).toBe(
    '<text font-size="12" x="1">&lt;script&gt;&quot;&amp;</text>',
  );
  expect(element("rect", { fill: 'a" onload="b' })).toBe(
    '<rect fill="a&quot; onload=&quot;b"></rect>',
  );
  expect(line("a long name", 40, {})).toContain(">a lo…<");
  expect(linesOf("one two three\nfour", 60, 3)).toEqual(["one two ", "three", "four"]);
});

test("P1.25 a graph is drawn with all its nodes, links and values", () => {
  const doc = parseJson(file("../../../../workflows/hires_inpaint_ui.json"));
  if (!isObject(doc)) throw new Error("no workflow");
  const { svg, width, height } = graphDrawing(doc, doc, new Map(), paint);
  expectWellFormed(svg);
  expect(svg.match(/<path/g)).toHaveLength((doc.links as unknown[]).length);
  expect(Math.min(width, height)).toBeGreaterThan(100);
  expect(graphDrawing({}, {}, new Map(), paint)).toMatchObject({ width: 80, height: 80 });
  const catalog = catalogOf({
    Text: { input: { required: { text: ["STRING", { multiline: true }], n: ["INT", {}] } } },
  });
  const node = { id: 1, type: "Text", title: "<b>", pos: [0, 0], widgets_values: ["a & b", 7] };
  const small = graphDrawing({ nodes: [node] }, { nodes: [node] }, catalog, paint).svg;
  expectWellFormed(small);
  for (const words of ["&lt;b&gt;", "a &amp; b", ">7<"]) expect(small).toContain(words);
});

test("P1.25 a timeline is drawn with every span, predicted and measured", () => {
  const plan = planOf(JSON.parse(file("../plan/model/fixtures/controlnet_lora.json")));
  const bar = { row: plan.devices[0] ?? "", target: "v0.0", evaluation: 10, start: 0, seconds: 1 };
  const { svg } = timelineDrawing([{ plan, measured: [bar] }], paint);
  expectWellFormed(svg);
  expect(svg.match(/<title>/g)).toHaveLength((plan.timeline?.spans.length ?? 0) + 1);
  expect(svg).toContain("v0.0, measured: 1.00 s");
});

test("P1.25 a trace has a thread for each device and link, and times in microseconds", () => {
  const span = { device: "cpu:0", kind: "segment", target: "v0.0", peer: "", evaluation: 3 };
  const send = { ...span, kind: "send", target: "x", peer: "cpu:1", evaluation: null };
  const spans = {
    "5": [
      { ...span, start: 0.5, seconds: 0.25 },
      { ...send, start: 1, seconds: 2 },
    ],
  };
  const trace = JSON.parse(printJson(traceOf({ ...blank("job", 0), spans })));
  const of = (ph: string) => trace.traceEvents.filter((event: any) => event.ph === ph);
  expect(of("M").map((event: any) => event.args.name)).toEqual([
    "node 5",
    "cpu:0",
    "cpu:0 → cpu:1",
  ]);
  expect(of("X")).toMatchObject([
    { ts: 500_000, dur: 250_000, tid: 0, name: "v0.0", args: { evaluation: 3 } },
    { ts: 1_000_000, dur: 2_000_000, tid: 1, cat: "send", args: {} },
  ]);
});
