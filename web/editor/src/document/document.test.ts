import { readdirSync, readFileSync } from "node:fs";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { isObject, type Json, parseJson, printJson } from "../json";
import { copied, pasted } from "./clipboard";
import { addNode, emptyDocument, moveNodes, removeNodes, setMode, setValue } from "./commands";
import { begin, record, redo, undo } from "./history";
import { connect, removeLinks } from "./links";
import { type Doc, linksOf, nodesOf } from "./model";

const VERSION_ONE: Doc = {
  nodes: [
    {
      id: 1,
      type: "A",
      pos: [0, 0],
      outputs: [{ name: "out", type: "X", links: [4] }],
      strange: 1,
    },
    { id: 2, type: "B", pos: { "0": 5, "1": 6 }, inputs: [{ name: "in", type: "X", link: 4 }] },
  ],
  links: [{ id: 4, origin_id: 1, origin_slot: 0, target_id: 2, target_slot: 0, type: "X" }],
  version: 1,
  state: { lastNodeId: 2, lastLinkId: 4, lastGroupId: 0 },
  unknown: { kept: true },
};

const A_NODE = {
  type: "A",
  pos: [0, 0],
  inputs: [{ name: "in", type: "X", link: null }],
  outputs: [{ name: "out", type: "X", links: [] }],
  widgets_values: [1, "a"],
};

describe("numbers", () => {
  test("integers beyond 2^53 stay exact", () => {
    const text = '{"seed":18446744073709551615,"small":7,"half":0.5}';
    const read = parseJson(text);
    expect(isObject(read) && read.seed).toBe(18446744073709551615n);
    expect(printJson(read)).toBe(text);
  });

  test("shipped workflows are written as they were read", () => {
    const folder = new URL("../../../../workflows/", import.meta.url);
    const files = readdirSync(folder).filter((name) => name.endsWith(".json"));
    expect(files.length).toBeGreaterThan(5);
    for (const name of files) {
      const text = readFileSync(new URL(name, folder), "utf8");
      expect(JSON.parse(printJson(parseJson(text)))).toEqual(JSON.parse(text));
    }
  });
});

describe("documents", () => {
  test("links of both file versions are read", () => {
    expect(linksOf(VERSION_ONE)).toEqual([
      { id: 4, from: "1", fromSlot: 0, to: "2", toSlot: 0, type: "X" },
    ]);
    expect(nodesOf(VERSION_ONE)[1]).toMatchObject({ x: 5, y: 6 });
  });

  test("moving a node changes only its position", () => {
    const moved = moveNodes(VERSION_ONE, new Map([["1", { x: 9, y: 8 }]]));
    expect(moved).toEqual({
      ...VERSION_ONE,
      nodes: [
        { ...((VERSION_ONE.nodes as Json[])[0] as object), pos: [9, 8] },
        (VERSION_ONE.nodes as Json[])[1],
      ],
    });
    expect((moved.nodes as Json[])[1]).toBe((VERSION_ONE.nodes as Json[])[1]);
    expect(moveNodes(VERSION_ONE, new Map())).toBe(VERSION_ONE);
  });

  test("a link is recorded in three places, and all of them are updated", () => {
    let doc = addNode(addNode(addNode(emptyDocument(), A_NODE), A_NODE), A_NODE);
    doc = connect(doc, { node: "1", slot: 0 }, { node: "2", slot: 0 }, "X");
    doc = connect(doc, { node: "3", slot: 0 }, { node: "2", slot: 0 }, "X");
    expect(doc.links).toEqual([[2, 3, 0, 2, 0, "X"]]);
    expect(nodesOf(doc)[1]?.inputs[0]?.link).toBe(2);
    expect(printJson((doc.nodes as Json[])[0] as Json)).toContain('"links":[]');
    const gone = removeNodes(doc, new Set(["3"]));
    expect(gone.links).toEqual([]);
    expect(nodesOf(gone)[1]?.inputs[0]?.link).toBeNull();
    const later = connect(VERSION_ONE, { node: "2", slot: 0 }, { node: "2", slot: 0 }, "X");
    expect(later.state).toEqual({ lastNodeId: 2, lastLinkId: 5, lastGroupId: 0 });
    expect(later.links).toEqual([
      { id: 5, origin_id: 2, origin_slot: 0, target_id: 2, target_slot: 0, type: "X" },
    ]);
  });

  test("P0.08 copied nodes are pasted with new ids and the links between them", () => {
    const text = copied(VERSION_ONE, new Set(["1", "2"]));
    const made = pasted(VERSION_ONE, text, 100, 50);
    expect(made?.ids).toEqual(["3", "4"]);
    expect(nodesOf(made?.doc ?? {}).slice(2)).toMatchObject([
      { x: 100, y: 50 },
      { x: 105, y: 56 },
    ]);
    expect(linksOf(made?.doc ?? {})[1]).toMatchObject({ from: "3", to: "4" });
    expect(pasted(VERSION_ONE, "a text", 0, 0)).toBeNull();
    expect(pasted(VERSION_ONE, '{"kind": "other"}', 0, 0)).toBeNull();
  });
});

type Command = (doc: Doc) => Doc;
const id = fc.integer({ min: 1, max: 6 }).map(String);
const command: fc.Arbitrary<Command> = fc.oneof(
  fc.constant<Command>((doc) => addNode(doc, A_NODE)),
  fc.tuple(id, fc.integer(), fc.integer()).map(
    ([node, x, y]): Command =>
      (doc) =>
        moveNodes(doc, new Map([[node, { x, y }]])),
  ),
  fc.tuple(id, fc.nat(1), fc.string()).map(
    ([node, key, value]): Command =>
      (doc) =>
        setValue(doc, node, key, value),
  ),
  fc.tuple(id, id).map(
    ([from, to]): Command =>
      (doc) =>
        connect(doc, { node: from, slot: 0 }, { node: to, slot: 0 }, "X"),
  ),
  fc.nat(9).map(
    (link): Command =>
      (doc) =>
        removeLinks(doc, new Set([link])),
  ),
  id.map(
    (node): Command =>
      (doc) =>
        removeNodes(doc, new Set([node])),
  ),
  fc.tuple(id, fc.constantFrom(0, 2, 4)).map(
    ([node, mode]): Command =>
      (doc) =>
        setMode(doc, new Set([node]), mode),
  ),
);

/** A short run by default; KATZ_UNDO_RUNS=200 for the full test. */
const RUNS = Number(process.env.KATZ_UNDO_RUNS ?? 40);
/**
 * Returns whether documents are compared as text. Compared by identity, a mutated one would pass.
 */
const isCompared = (step: number) => step % 50 === 0 || step > 950;

describe("undo", () => {
  test(`P0.09 undo and redo restore all states of a thousand random commands, ${RUNS} times`, () => {
    fc.assert(
      fc.property(fc.array(command, { minLength: 1000, maxLength: 1000 }), (commands) => {
        let history = begin(emptyDocument());
        const texts = [printJson(history.present.doc)];
        for (const edit of commands) {
          const next = record(history, edit(history.present.doc), "edit");
          if (next !== history)
            texts.push(isCompared(texts.length) ? printJson(next.present.doc) : "");
          history = next;
        }
        const steps = texts.length - 1;
        const expectText = (at: number) => {
          if (texts[at] !== "") expect(printJson(history.present.doc)).toBe(texts[at]);
        };
        const [first, last] = [history.past[0]?.doc, history.present.doc];
        for (let at = steps; at > 0; at--) {
          expectText(at);
          history = undo(history);
        }
        expect(history.present.doc).toBe(first ?? last);
        expect(undo(history)).toBe(history);
        for (let at = 0; at < steps; at++) {
          expectText(at);
          history = redo(history);
        }
        expect(history.present.doc).toBe(last);
        expectText(steps);
        expect(redo(history)).toBe(history);
      }),
      { numRuns: RUNS },
    );
  }, 600_000);

  test("P0.09 a gesture is one step, and a command without effect is none", () => {
    const doc = addNode(emptyDocument(), A_NODE);
    let history = begin(doc);
    for (const value of ["a", "ab", "abc"])
      history = record(history, setValue(history.present.doc, "1", 1, value), "set text", "g1");
    history = record(history, moveNodes(history.present.doc, new Map()), "move");
    expect(history.past).toHaveLength(1);
    expect(undo(history).present.doc).toBe(doc);
  });
});
