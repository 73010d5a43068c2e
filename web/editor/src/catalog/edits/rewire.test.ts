import { describe, expect, test } from "vitest";
import { addNode, changeNode, emptyDocument, setColour, setValue } from "../../document/commands";
import { connect } from "../../document/links";
import { type Doc, linksOf, nodesOf } from "../../document/model";
import { addReroute, throughOf } from "../../document/reroutes";
import { catalogOf } from "../catalog";
import { newNode } from "../placed";
import { keeps, replaced } from "./replacement";
import { dissolved, inserted, linkedNext, swappable, swapped } from "./rewire";

const CATALOG = catalogOf({
  Load: { output: ["MODEL", "CLIP"] },
  Lora: {
    input: { required: { model: ["MODEL"], clip: ["CLIP"], strength: ["FLOAT", {}] } },
    output: ["MODEL", "CLIP"],
  },
  Encode: { input: { required: { clip: ["CLIP"], text: ["STRING", {}] } }, output: ["COND"] },
  Control: {
    input: { required: { positive: ["COND"], negative: ["COND"] } },
    output: ["COND", "COND"],
    output_name: ["positive", "negative"],
  },
  Sample: {
    input: {
      required: {
        model: ["MODEL"],
        seed: ["INT", { max: 99 }],
        steps: ["INT", { min: 1, max: 50, default: 20 }],
        scheduler: [["normal", "karras"]],
        positive: ["COND"],
        negative: ["COND"],
      },
    },
    output: ["LATENT"],
  },
  Advanced: {
    input: {
      required: {
        negative: ["COND"],
        positive: ["COND"],
        net: ["MODEL"],
        add: [["enable", "disable"]],
        seed: ["INT", { max: 99 }],
        steps: ["INT", { min: 1, max: 10, default: 5 }],
        scheduler: [["karras", "simple"]],
      },
    },
    output: ["LATENT", "LATENT"],
  },
  Save: { input: { required: { samples: ["LATENT"] } } },
});

function built(types: readonly string[], links: readonly (readonly number[])[]): Doc {
  const nodes = types.reduce<Doc>((graph, name, at) => {
    const type = CATALOG.get(name);
    return type === undefined ? graph : addNode(graph, newNode(type, 300 * at, 0));
  }, emptyDocument());
  return links.reduce((graph, [from = 0, fromSlot = 0, to = 0, toSlot = 0]) => {
    const type = nodesOf(graph)[from - 1]?.outputs[fromSlot]?.type ?? "*";
    const [source, target] = [
      { node: String(from), slot: fromSlot },
      { node: String(to), slot: toSlot },
    ];
    return connect(graph, source, target, type);
  }, nodes);
}

/** Returns links as [from, slot, to, slot] in a stable order. */
function wires(graph: Doc): readonly (readonly (string | number)[])[] {
  return linksOf(graph)
    .map(({ from, fromSlot, to, toSlot }) => [from, fromSlot, to, toSlot] as const)
    .sort((one, other) => one.join().localeCompare(other.join()));
}

describe("P1.01", () => {
  test("a node dropped on a link is inserted, and the link keeps its reroutes", () => {
    const graph = addReroute(built(["Load", "Sample", "Lora"], [[1, 0, 2, 0]]), 1, { x: 1, y: 2 });
    const next = inserted(graph, CATALOG, "3", 1);
    expect(next && wires(next)).toEqual([
      ["1", 0, "3", 0],
      ["3", 0, "2", 0],
    ]);
    expect(next && throughOf(next).get(1)).toEqual([1]);
  });

  test("a node is not inserted if it does not fit, is linked, or would form a cycle", () => {
    const graph = built(
      ["Load", "Sample", "Lora", "Encode"],
      [
        [1, 0, 2, 0],
        [1, 1, 4, 0],
      ],
    );
    expect(inserted(graph, CATALOG, "4", 1)).toBeNull();
    expect(inserted(graph, CATALOG, "2", 1)).toBeNull();
    expect(inserted(graph, CATALOG, "99", 1)).toBeNull();
    expect(inserted(graph, CATALOG, "3", 99)).toBeNull();
    const taken = built(
      ["Load", "Sample", "Lora", "Load"],
      [
        [1, 0, 2, 0],
        [4, 0, 3, 0],
      ],
    );
    expect(inserted(taken, CATALOG, "3", 1)).toBeNull();
  });

  test("dissolving a node connects its sources to its targets, by slot and type", () => {
    const graph = built(
      ["Load", "Lora", "Encode", "Encode", "Control", "Sample"],
      [
        [1, 0, 2, 0],
        [1, 1, 2, 1],
        [2, 1, 3, 0],
        [2, 1, 4, 0],
        [3, 0, 5, 0],
        [4, 0, 5, 1],
        [2, 0, 6, 0],
        [5, 0, 6, 1],
        [5, 1, 6, 2],
      ],
    );
    const next = dissolved(graph, new Set(["2", "5"]));
    expect(wires(next)).toEqual([
      ["1", 0, "6", 0],
      ["1", 1, "3", 0],
      ["1", 1, "4", 0],
      ["3", 0, "6", 1],
      ["4", 0, "6", 2],
    ]);
    expect(nodesOf(next).map(({ id }) => id)).toEqual(["1", "3", "4", "6"]);
  });

  test("dissolving a chain of nodes connects its outer neighbours", () => {
    const graph = built(
      ["Load", "Lora", "Lora", "Sample"],
      [
        [1, 0, 2, 0],
        [2, 0, 3, 0],
        [3, 0, 4, 0],
      ],
    );
    expect(wires(dissolved(graph, new Set(["2", "3"])))).toEqual([["1", 0, "4", 0]]);
  });
});

describe("P1.07", () => {
  const SAMPLED = addReroute(
    built(
      ["Load", "Encode", "Encode", "Sample", "Save"],
      [
        [1, 0, 4, 0],
        [2, 0, 4, 1],
        [3, 0, 4, 2],
        [4, 0, 5, 0],
      ],
    ),
    2,
    { x: 3, y: 4 },
  );
  const type = (name: string) => {
    const found = CATALOG.get(name);
    if (found === undefined) throw new Error(name);
    return found;
  };

  test("a replaced node keeps values by name, links by name and type, looks and reroutes", () => {
    const graph = setColour(
      setValue(setValue(SAMPLED, "4", 0, 7), "4", 1, "fixed"),
      new Set(["4"]),
      "#123456",
    );
    const karras = setValue(setValue(graph, "4", 2, 30), "4", 3, "karras");
    const next = replaced(karras, CATALOG, new Set(["4"]), type("Advanced"));
    const node = nodesOf(next).find(({ id }) => id === "4");
    expect(node).toMatchObject({ type: "Advanced", x: 900, colour: "#123456" });
    // 30 steps exceed the maximum
    expect(node?.values).toEqual(["enable", 7, "fixed", 5, "karras"]);
    expect(wires(next)).toEqual([
      ["1", 0, "4", 2],
      ["2", 0, "4", 1],
      ["3", 0, "4", 0],
      ["4", 0, "5", 0],
    ]);
    expect(throughOf(next).get(2)).toEqual([1]);
    expect(nodesOf(next).map(({ id }) => id)).toEqual(["1", "2", "3", "4", "5"]);
  });

  test("incompatible links are cut; the number of retained links is known in advance", () => {
    const nodes = nodesOf(SAMPLED).filter(({ id }) => id === "4");
    expect(keeps(SAMPLED, nodes, type("Advanced"))).toBe(4);
    expect(keeps(SAMPLED, nodes, type("Control"))).toBe(2);
    const next = replaced(SAMPLED, CATALOG, new Set(["4"]), type("Control"));
    expect(wires(next)).toEqual([
      ["2", 0, "4", 0],
      ["3", 0, "4", 1],
    ]);
  });

  test("a node of an unknown type keeps compatible links", () => {
    const strange = withoutType(SAMPLED, "4");
    expect(wires(replaced(strange, CATALOG, new Set(["4"]), type("Advanced")))).toHaveLength(4);
  });

  test("two inputs are swapped, even if only one is linked", () => {
    const [node] = nodesOf(SAMPLED).filter(({ id }) => id === "4");
    if (node === undefined) throw new Error("no node");
    const [pair, ...others] = swappable(SAMPLED, node);
    expect([pair, others]).toEqual([{ one: 1, other: 2 }, []]);
    if (pair === undefined) return;
    const next = swapped(SAMPLED, "4", pair);
    expect(wires(next)).toContainEqual(["2", 0, "4", 2]);
    expect(wires(next)).toContainEqual(["3", 0, "4", 1]);
    expect(throughOf(next).get(2)).toEqual([1]);
    expect(wires(swapped(next, "4", pair))).toEqual(wires(SAMPLED));
    const one = built(["Encode", "Control"], [[1, 0, 2, 0]]);
    expect(wires(swapped(one, "2", { one: 0, other: 1 }))).toEqual([["1", 0, "2", 1]]);
  });

  test("two nodes are linked by their best free match, repeatedly", () => {
    const graph = built(["Load", "Lora"], []);
    const first = linkedNext(graph, CATALOG, "1", "2");
    const second = first && linkedNext(first, CATALOG, "1", "2");
    expect(second && wires(second)).toEqual([
      ["1", 0, "2", 0],
      ["1", 1, "2", 1],
    ]);
    expect(second && linkedNext(second, CATALOG, "1", "2")).toBeNull();
    const control = built(["Control", "Sample"], []);
    const named = linkedNext(control, CATALOG, "1", "2");
    expect(named && wires(named)).toEqual([["1", 0, "2", 1]]);
  });
});

function withoutType(graph: Doc, node: string): Doc {
  return changeNode(graph, node, (raw) => ({ ...raw, type: "FromAnotherPack" }));
}
