/** Finds nodes in the whole document, including subgraphs, and brings one into view. */
import { useMemo, useState } from "react";
import type { DocNode } from "../document/model";
import { nodesOf } from "../document/model";
import { graphsOf, type Path, trail } from "../document/scope";
import { printJson } from "../json";
import { useCanvas } from "../state/canvas";
import { docOf, useActive, useDocuments } from "../state/documents";
import { useLive } from "../state/live";
import { usePage } from "../state/page";
import { Picker } from "../ui/Picker";

const MAX_SHOWN = 100;
const MAX_VALUE_CHARACTERS = 60;

interface Found {
  readonly node: DocNode;
  readonly path: Path;
  readonly text: string;
}

export function Find() {
  const session = useActive();
  const catalog = useLive((live) => live.catalog);
  const [query, setQuery] = useState("");
  const doc = session === null ? null : docOf(session);
  const all = useMemo(
    () =>
      doc === null
        ? []
        : graphsOf(doc).flatMap(({ path, graph }) =>
            nodesOf(graph).map((node): Found => {
              const title = catalog.get(node.type)?.title ?? "";
              const values = printJson(node.values);
              const text =
                `${node.title} ${title} ${node.type} #${node.id} ${values}`.toLowerCase();
              return { node, path, text };
            }),
          ),
    [doc, catalog],
  );
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const found = all.filter(({ text }) => words.every((word) => text.includes(word)));
  const close = () => usePage.setState({ dialog: null });
  return (
    <Picker
      label="Find in the graph"
      query={query}
      onQuery={setQuery}
      entries={found.slice(0, MAX_SHOWN).map(({ node, path }) => ({
        id: [...path, node.id].join(":"),
        title: `${node.title || catalog.get(node.type)?.title || node.type} #${node.id}`,
        detail: [...(doc === null ? [] : trail(doc, path)), printJson(node.values)]
          .join(" › ")
          .slice(0, MAX_VALUE_CHARACTERS),
      }))}
      onClose={close}
      onPick={(id) => {
        close();
        jumpTo(id);
      }}
    />
  );
}

/** Brings a node into view by its id in a job: `97:98` is inside `97`. */
export function jumpTo(id: string): void {
  const { active, update } = useDocuments.getState();
  const parts = id.split(":");
  const node = parts.pop() ?? "";
  update(active, { path: parts });
  // the canvas of another graph mounts first
  requestAnimationFrame(() => requestAnimationFrame(() => useCanvas.getState().jump(node)));
}
