import { describe, expect, test } from "vitest";
import { addNode, emptyDocument } from "../document/commands";
import { nodesOf } from "../document/model";
import type { Json } from "../json";
import { catalogOf, compatible } from "./catalog";
import { parsedNumber } from "./numbers";
import { newNode, placedWidgets } from "./placed";
import { withNextSeeds } from "./seeds";

const CATALOG = catalogOf({
  KSampler: {
    display_name: "KSampler",
    category: "sampling",
    input: {
      required: {
        model: ["MODEL"],
        seed: [
          "INT",
          { default: 0, min: 0, max: 18446744073709551615n, control_after_generate: true },
        ],
        steps: ["INT", { default: 20, min: 1, max: 10000 }],
        sampler_name: [["euler", "ddim"]],
      },
    },
    output: ["LATENT"],
    output_name: ["LATENT"],
  },
  LoadImage: {
    input: { required: { image: ["COMBO", { options: ["a.png"], image_upload: true }] } },
    output: ["IMAGE", "MASK"],
  },
});
const sampler = CATALOG.get("KSampler");
if (sampler === undefined) throw new Error("no sampler");

function docWith(values: Json[]) {
  return addNode(emptyDocument(), { ...newNode(sampler as never, 0, 0), widgets_values: values });
}

describe("widgets", () => {
  test("hidden helper values are skipped", () => {
    const [node] = nodesOf(docWith([7, "randomize", 12, "ddim"]));
    const placed = node ? placedWidgets(node, sampler) : [];
    expect(placed.map(({ widget, key, value }) => [widget.name, key, value])).toEqual([
      ["seed", 0, 7],
      ["steps", 2, 12],
      ["sampler_name", 3, "ddim"],
    ]);
  });

  test("values that do not match the type are not assigned to widgets", () => {
    const [node] = nodesOf(docWith(["euler", 7]));
    expect(node && placedWidgets(node, sampler)).toEqual([]);
    expect(node && placedWidgets(node, undefined)).toEqual([]);
  });

  test("a new node has its defaults, helpers and sockets", () => {
    const made = newNode(sampler as never, 3, 4);
    expect(made.widgets_values).toEqual([0, "randomize", 20, "euler"]);
    expect(made.pos).toEqual([3, 4]);
    const upload = CATALOG.get("LoadImage");
    expect(upload && newNode(upload, 0, 0).widgets_values).toEqual(["a.png", "image"]);
  });

  test("P0.25 seeds follow their control values, with exact integers", () => {
    const next = (values: Json[]) =>
      nodesOf(withNextSeeds(docWith(values), CATALOG, () => 5n))[0]?.values;
    expect(next([7, "fixed", 1, "euler"])).toEqual([7, "fixed", 1, "euler"]);
    expect(next([7, "randomize", 1, "euler"])).toEqual([5, "randomize", 1, "euler"]);
    expect(next([2 ** 53 - 1, "increment", 1, "euler"])).toEqual([
      9007199254740992n,
      "increment",
      1,
      "euler",
    ]);
    expect(next([0, "decrement", 1, "euler"])).toEqual([0, "decrement", 1, "euler"]);
  });

  test("P0.21 numbers: bounds, decimal comma, 2^64 - 1", () => {
    const seed = { whole: true, options: { min: 0, max: 18446744073709551615n } };
    expect(parsedNumber("18446744073709551615", seed)).toBe(18446744073709551615n);
    expect(parsedNumber("18446744073709551616", seed)).toBe(18446744073709551615n);
    expect(parsedNumber("-3", seed)).toBe(0);
    expect(parsedNumber("4.6", seed)).toBe(5);
    const strength = { whole: false, options: { min: 0, max: 2 } };
    expect(parsedNumber("0,75", strength)).toBe(0.75);
    expect(parsedNumber("9", strength)).toBe(2);
    expect(parsedNumber("1e", strength)).toBeNull();
    expect(parsedNumber("abc", seed)).toBeNull();
  });
});

test("P0.05 one rule decides which types are compatible", () => {
  expect(compatible("IMAGE", "IMAGE")).toBe(true);
  expect(compatible("IMAGE", "MASK")).toBe(false);
  expect(compatible("IMAGE", "*")).toBe(true);
  expect(compatible("INT,FLOAT", "FLOAT")).toBe(true);
});

test("P0.24 a colour widget has one value, and the values after it keep their order", () => {
  const [type] = catalogOf({
    Tint: {
      input: { required: { tone: ["COLOR", { default: "#ff0000" }], share: ["FLOAT", {}] } },
      output: [],
    },
  }).values();
  if (type === undefined) throw new Error("no type");
  expect(type.sockets).toEqual([]);
  const made = newNode(type, 0, 0);
  expect(made.widgets_values).toEqual(["#ff0000", 0]);
  const [doc] = nodesOf({ nodes: [{ id: 1, ...made, widgets_values: ["#0f0", 0.5] }] });
  if (doc === undefined) throw new Error("no node");
  expect(placedWidgets(doc, type).map(({ key, value }) => [key, value])).toEqual([
    [0, "#0f0"],
    [1, 0.5],
  ]);
});
