import { expect, test } from "vitest";
import { addNode, emptyDocument } from "../document/commands";
import { removeLinks } from "../document/links";
import { linksOf, nodesOf } from "../document/model";
import { catalogOf, widgetNamed } from "./catalog";
import { setChoice } from "./dynamic";
import { replaced } from "./edits/replacement";
import { inputAt, inputsOf, linked } from "./ends";
import { newNode, placedWidgets } from "./placed";

const WIDTH = ["INT", { default: 512 }];
const CATALOG = catalogOf({
  Resize: {
    input: {
      required: {
        input: ["IMAGE,MASK", {}],
        way: [
          "COMFY_DYNAMICCOMBO_V3",
          {
            default: "sides",
            options: [
              { key: "sides", inputs: { required: { width: WIDTH, height: WIDTH } } },
              { key: "width", inputs: { required: { width: WIDTH } } },
              { key: "match", inputs: { optional: { other: ["IMAGE,MASK", {}] } } },
            ],
          },
        ],
        method: [["area", "lanczos"], {}],
      },
    },
    output: ["IMAGE"],
  },
  Join: {
    input: {
      required: {
        texts: [
          "COMFY_AUTOGROW_V3",
          {
            template: { input: { required: { t: ["STRING", {}] } }, prefix: "t", min: 1, max: 3 },
          },
        ],
        with: ["STRING", { default: ", " }],
      },
    },
    output: ["STRING"],
  },
});
const TYPE = CATALOG.get("Resize");

function fresh() {
  if (TYPE === undefined) throw new Error("no type");
  return addNode(emptyDocument(), newNode(TYPE, 0, 0));
}
const first = (graph: ReturnType<typeof fresh>) => nodesOf(graph)[0];
const values = (graph: ReturnType<typeof fresh>) => first(graph)?.values;
const shown = (graph: ReturnType<typeof fresh>) => {
  const node = first(graph);
  return node === undefined
    ? []
    : placedWidgets(node, TYPE).map(({ widget, value }) => [widget.name, value]);
};

test("P0.21 a dynamic choice is followed by its inputs with their defaults", () => {
  const graph = fresh();
  expect(values(graph)).toEqual(["sides", 512, 512, "area"]);
  expect(shown(graph).map(([name]) => name)).toEqual(["way", "way.width", "way.height", "method"]);
  expect(TYPE?.sockets.map(({ name }) => name)).toEqual(["input", "way.other"]);
  expect(widgetNamed(TYPE, "way.height")?.kind).toBe("number");
});

test("P0.21 another value replaces the inputs; equal names keep their values, later values stay", () => {
  const before = fresh();
  const id = first(before)?.id ?? "";
  const wide = setChoice(before, CATALOG, id, "way", "width");
  expect(values(wide)).toEqual(["width", 512, "area"]);
  const matched = setChoice(wide, CATALOG, id, "way", "match");
  expect(values(matched)).toEqual(["match", "area"]);
  expect(values(setChoice(matched, CATALOG, id, "way", "sides"))).toEqual(values(before));
  expect(first(matched)?.inputs).toEqual(first(before)?.inputs); // links refer to inputs by index
});

test("P0.21 sockets of a choice are shown while it is selected or they are linked", () => {
  const graph = fresh();
  const id = first(graph)?.id ?? "";
  const shown = (of: typeof graph) => {
    const node = first(of);
    const inputs = node === undefined ? [] : inputsOf(node, TYPE);
    return inputs.filter(({ widget }) => widget === null).map(({ name }) => name);
  };
  expect(shown(graph)).toEqual(["input"]);
  const matched = setChoice(graph, CATALOG, id, "way", "match");
  expect(shown(matched)).toEqual(["input", "way.other"]);
  const end = inputAt(matched, CATALOG, id, "in:1");
  if (end === null) throw new Error("no input");
  const source = addNode(matched, { ...first(matched)?.raw, id: 99 });
  const from = { node: nodesOf(source)[1]?.id ?? "", slot: 0, type: "IMAGE" };
  const wired = setChoice(linked(source, from, end), CATALOG, id, "way", "width");
  expect(shown(wired)).toEqual(["input", "way.other"]);
});

test("P0.21 values by name, alone or in addition to the list, are updated with the choice", () => {
  const graph = fresh();
  const named = {
    ...graph,
    nodes: [
      {
        ...(first(graph)?.raw ?? {}),
        widgets_values: ["sides", 7, 8, "lanczos"],
        widgets_values_named: { way: "sides", "way.width": 7, "way.height": 8, method: "lanczos" },
      },
    ],
  };
  const id = first(named)?.id ?? "";
  const wide = setChoice(named, CATALOG, id, "way", "width");
  expect(first(wide)?.raw.widgets_values).toEqual(["width", 7, "lanczos"]);
  expect(first(wide)?.raw.widgets_values_named).toEqual({
    way: "width",
    "way.width": 7,
    method: "lanczos",
  });
  const byName = {
    ...named,
    nodes: [{ ...named.nodes[0], widgets_values: named.nodes[0]?.widgets_values_named ?? {} }],
  };
  const chosen = setChoice(byName, CATALOG, id, "way", "match");
  expect(first(chosen)?.values).toEqual({ way: "match", method: "lanczos" });
});

test("P0.21 a group of inputs shows the linked ones and one more", () => {
  const join = CATALOG.get("Join");
  if (join === undefined) throw new Error("no type");
  const pair = [0, 1].reduce((graph) => addNode(graph, newNode(join, 0, 0)), emptyDocument());
  const [source = "", node = ""] = nodesOf(pair).map(({ id }) => id);
  const ends = (graph: typeof pair) =>
    nodesOf(graph)
      .filter(({ id }) => id === node)
      .flatMap((one) => inputsOf(one, join))
      .filter(({ widget }) => widget === null);
  const link = (graph: typeof pair, name: string) => {
    const end = ends(graph).find((one) => one.name === name);
    if (end === undefined) throw new Error(`no ${name}`);
    return linked(graph, { node: source, slot: 0, type: "STRING" }, end);
  };
  expect(ends(pair).map(({ name, optional }) => [name, optional])).toEqual([["texts.t0", false]]);
  const one = link(pair, "texts.t0");
  expect(ends(one).map(({ name }) => name)).toEqual(["texts.t0", "texts.t1"]);
  const two = link(one, "texts.t1");
  expect(ends(two).map(({ name }) => name)).toEqual(["texts.t0", "texts.t1", "texts.t2"]);
  expect(ends(link(two, "texts.t2"))).toHaveLength(3); // the group is at its maximum
  const ids = new Set(linksOf(two).flatMap(({ id, toSlot }) => (toSlot > 0 ? [id] : [])));
  expect(ends(removeLinks(two, ids)).map(({ name }) => name)).toEqual(["texts.t0", "texts.t1"]);
  const all = new Set(linksOf(two).map(({ id }) => id));
  expect(ends(removeLinks(two, all)).map(({ name }) => name)).toEqual(["texts.t0"]);
  // replacing the node by its own type keeps its links
  const again = replaced(two, CATALOG, new Set([node]), join);
  expect(linksOf(again)).toHaveLength(2);
  expect(ends(again).map(({ name }) => name)).toEqual(["texts.t0", "texts.t1", "texts.t2"]);
});
