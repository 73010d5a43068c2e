/**
 * Links by keyboard: choose a socket of the selected node, then a compatible one, nearest first.
 */
import { useState } from "react";
import type { Catalog } from "../catalog/catalog";
import { type Input, inputsOf, linked, type Output, whyNot } from "../catalog/ends";
import { type Doc, type DocNode, linksOf, nodesOf } from "../document/model";
import { useCanvas } from "../state/canvas";
import { graphOf, useActive, useDocuments } from "../state/documents";
import { useLive } from "../state/live";
import { type Entry, Picker } from "../ui/Picker";

interface Choice extends Entry {
  readonly output?: Output;
  readonly input?: Input;
}

export function Connect({ onClose }: { readonly onClose: () => void }) {
  const session = useActive();
  const catalog = useLive((live) => live.catalog);
  const [query, setQuery] = useState("");
  const [end, setEnd] = useState<Choice | null>(null);
  const own = useCanvas(({ selected }) => [...selected][0]);
  if (session === null) return null;
  const graph = graphOf(session);
  const node = nodesOf(graph).find(({ id }) => id === own);
  const all = end === null ? socketsOf(node, graph, catalog) : fitting(end, node, graph, catalog);
  const words = query.toLowerCase().split(/\s+/);
  const shown = all.filter(({ title, detail = "" }) =>
    words.every((word) => `${title} ${detail}`.toLowerCase().includes(word)),
  );
  return (
    <Picker
      key={end?.id ?? ""}
      label={end === null ? "Connect: which socket?" : `Connect ${end.title} with`}
      query={query}
      onQuery={setQuery}
      entries={shown}
      onClose={onClose}
      onPick={(id) => {
        const chosen = all.find((one) => one.id === id);
        setQuery("");
        if (chosen === undefined) return;
        if (end === null) return setEnd(chosen);
        onClose();
        const [from, to] = [end.output ?? chosen.output, end.input ?? chosen.input];
        if (from !== undefined && to !== undefined)
          useDocuments.getState().change(session.id, "connect", (now) => linked(now, from, to));
      }}
    />
  );
}

function socketsOf(node: DocNode | undefined, graph: Doc, catalog: Catalog): readonly Choice[] {
  if (node === undefined) return [];
  const taken = new Set(
    linksOf(graph).flatMap(({ to, toSlot }) => (to === node.id ? [toSlot] : [])),
  );
  return [
    ...inputsOf(node, catalog.get(node.type)).map((input): Choice => {
      const is = input.slot !== null && taken.has(input.slot) ? ", linked" : "";
      const id = `in ${input.name}`;
      return { id, title: `← ${input.name}`, detail: input.type + is, input };
    }),
    ...node.outputs.map(({ label, type }, slot): Choice => {
      const output = { node: node.id, slot, type };
      return { id: `out ${slot}`, title: `${label} →`, detail: type, output };
    }),
  ];
}

function fitting(
  { output, input }: Choice,
  own: DocNode | undefined,
  graph: Doc,
  catalog: Catalog,
): readonly Choice[] {
  const far = ({ x, y }: DocNode) => Math.hypot(x - (own?.x ?? 0), y - (own?.y ?? 0));
  return [...nodesOf(graph)]
    .sort((one, other) => far(one) - far(other))
    .flatMap((node) => {
      const name = node.title || catalog.get(node.type)?.title || node.type;
      const sockets = socketsOf(node, graph, catalog);
      return sockets
        .filter((one) => {
          const [from, to] = [output ?? one.output, input ?? one.input];
          return from !== undefined && to !== undefined && whyNot(graph, from, to) === null;
        })
        .map((one) => ({
          ...one,
          id: `${node.id} ${one.id}`,
          title: `${name} #${node.id}`,
          detail: `${one.title} ${one.detail}`,
        }));
    });
}
