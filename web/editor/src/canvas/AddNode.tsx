/** Searches for a node type and places it, connected to the dropped link if there is one. */
import { useReactFlow } from "@xyflow/react";
import { useMemo, useState } from "react";
import { compatible, type NodeType, socketOf } from "../catalog/catalog";
import { linked } from "../catalog/ends";
import { inCategory, recentlyUsed, searched, socketsOf } from "../catalog/search";
import { place, withNode } from "../commands/addNode";
import type { Place } from "../document/commands";
import { connect } from "../document/links";
import { type Doc, nodesOf } from "../document/model";
import { type Pending, useCanvas } from "../state/canvas";
import { useLive } from "../state/live";
import { useSettings } from "../state/settings";
import { type Entry, Picker } from "../ui/Picker";

export function AddNode() {
  const asking = useCanvas((canvas) => canvas.asking);
  return asking === null ? null : <Search asking={asking} key={asking.x} />;
}

function Search({
  asking,
}: {
  readonly asking: { readonly x: number; readonly y: number; readonly pending: Pending | null };
}) {
  const catalog = useLive((live) => live.catalog);
  const flow = useReactFlow();
  const [query, setQuery] = useState("");
  const [folder, setFolder] = useState("");
  const [used] = useState(() => useSettings.getState().used); // fixed while several are placed
  const { pending } = asking;
  const choices = useMemo(() => {
    const fits = (type: NodeType) => pending === null || slotFor(type, pending) !== null;
    const found = searched(catalog, query, used).filter(fits);
    if (query !== "") return found.slice(0, MAX_ENTRIES);
    const { folders, types } = inCategory(found, folder);
    const first =
      folder === "" ? recentlyUsed(catalog, used).filter(fits).slice(0, MAX_RECENT) : [];
    return [...first, ...folders, ...types];
  }, [catalog, query, pending, used, folder]);
  const close = () => useCanvas.setState({ asking: null });
  const what = pending === null ? "Add a node" : `Add a node for ${pending.end.type}`;
  return (
    <Picker
      key={folder}
      label={folder === "" || query !== "" ? what : `${what}: ${folder}`}
      query={query}
      onQuery={setQuery}
      entries={choices.map(entryOf)}
      onClose={close}
      onBack={() => setFolder(folder.split("/").slice(0, -1).join("/"))}
      onPick={(id, more) => {
        const choice = choices[Number(id)];
        if (typeof choice === "string") return setFolder(folder ? `${folder}/${choice}` : choice);
        if (!more) close();
        if (choice === undefined) return;
        place(choice.name, flow.screenToFlowPosition(asking), (graph, type, at) =>
          placed(graph, type, at, pending),
        );
        if (!more) document.querySelector<HTMLElement>("main.canvas")?.focus();
      }}
    />
  );
}

const MAX_ENTRIES = 200; // entries listed at most
const MAX_RECENT = 8;

/** Lists a node type, or a category that opens further choices. */
function entryOf(choice: NodeType | string, number: number): Entry {
  const id = String(number);
  if (typeof choice === "string") return { id, title: `${choice} ›` };
  const [help] = choice.description.split("\n");
  return {
    id,
    title: choice.title,
    detail: `${choice.category} · ${choice.pack}`,
    below: [socketsOf(choice), help].filter(Boolean).join(" · "),
    help: choice.description,
  };
}

/** Finds the slot of a new node that takes the end of the link; sockets come before widgets. */
function slotFor(type: NodeType, { side, end }: Pending): number | null {
  const inputs = [
    ...type.sockets.map((socket) => socket.type),
    ...(type.isVirtual ? [] : type.widgets).map(socketOf),
  ];
  const place =
    side === "from"
      ? inputs.findIndex((input) => compatible(end.type, input))
      : type.outputs.findIndex((output) => compatible(output.type, end.type));
  return place < 0 ? null : place;
}

function placed(graph: Doc, type: NodeType, at: Place, pending: Pending | null): Doc {
  const added = withNode(graph, type, at);
  const slot = pending === null ? null : slotFor(type, pending);
  const made = nodesOf(added).at(-1);
  if (pending === null || slot === null || made === undefined) return added;
  return pending.side === "from"
    ? connect(added, pending.end, { node: made.id, slot }, pending.end.type)
    : linked(added, { node: made.id, slot, type: made.outputs[slot]?.type ?? "*" }, pending.end);
}
