/** Checks graphs in tests of several modules. */
import { expect } from "vitest";
import { isObject, type JsonObject, listOf } from "../json";
import { type Doc, linksOf } from "./model";
import { boundariesOf } from "./scope";

/** Checks that the link ids recorded at both ends agree with the list of links. */
export function expectAgreement(graph: Doc): void {
  const links = linksOf(graph);
  const boundaries = new Map(boundariesOf(graph).map(({ id, side }) => [id, side]));
  for (const raw of listOf(graph.nodes).filter(isObject)) {
    const id = String(raw.id);
    listOf(raw.inputs).forEach((slot, number) => {
      const link = links.find(({ to, toSlot }) => to === id && toSlot === number);
      expect((slot as JsonObject).link ?? null).toBe(link?.id ?? null);
    });
    listOf(raw.outputs).forEach((slot, number) => {
      const given = links.filter(({ from, fromSlot }) => from === id && fromSlot === number);
      const recorded = listOf((slot as JsonObject).links).map(Number);
      expect(recorded.sort()).toEqual(given.map((link) => link.id).sort());
    });
  }
  for (const [id, side] of boundaries)
    listOf(graph[side]).forEach((slot, number) => {
      const given = links.filter((link) =>
        side === "inputs"
          ? link.from === id && link.fromSlot === number
          : link.to === id && link.toSlot === number,
      );
      const recorded = listOf((slot as JsonObject).linkIds).map(Number);
      expect(recorded.sort()).toEqual(given.map((link) => link.id).sort());
    });
}
