/** Searches for a node type and places it, linked to the end of a link that was dropped. */
import { useReactFlow } from "@xyflow/react";
import { useMemo, useState } from "react";
import { compatible, type NodeType, socketOf } from "../catalog/catalog";
import { inCategory, lately, searched, socketsOf } from "../catalog/search";
import { connect } from "../document/links";
import { type Doc, nodesOf } from "../document/model";
import { selectLast, withNode } from "../shell/adding";
import { type Session, useDocuments } from "../shell/documents";
import { useLive } from "../shell/live";
import { useSettings } from "../shell/settings";
import { type Entry, Picker } from "../dialogs/Picker";
import { linked } from "./ends";
import { type Pending, useCanvas } from "./state";

export function AddNode({ session }: { readonly session: Session }) {
  const asking = useCanvas((canvas) => canvas.asking);
  return asking === null ? null : <Search session={session} asking={asking} key={asking.x} />;
}

function Search({
  session,
  asking,
}: {
  readonly session: Session;
  readonly asking: { readonly x: number; readonly y: number; readonly pending: Pending | null };
}) {
  const catalog = useLive((live) => live.catalog);
  const flow = useReactFlow();
  const [query, setQuery] = useState("");
  const [folder, setFolder] = useState("");
  const used = useSettings((settings) => settings.used);
  const { pending } = asking;
  const entries = useMemo(() => {
    const fits = (type: NodeType) => pending === null || slotFor(type, pending) !== null;
    const found = searched(catalog, query, used).filter(fits);
    if (query !== "") return found.slice(0, MOST).map(entryOf);
    const { folders, types } = inCategory(found, folder);
    return [
      ...(folder === "" ? lately(catalog, used).filter(fits).slice(0, LATELY) : []).map(entryOf),
      ...folders.map((name) => ({ id: `${FOLDER}${name}`, title: `${name} ›` })),
      ...types.map(entryOf),
    ];
  }, [catalog, query, pending, used, folder]);
  const close = () => useCanvas.setState({ asking: null });
  const enter = (name: string) => setFolder(folder === "" ? name : `${folder}/${name}`);
  const what = pending === null ? "Add a node" : `Add a node for ${pending.end.type}`;
  return (
    <Picker
      key={folder}
      label={folder === "" || query !== "" ? what : `${what}: ${folder}`}
      query={query}
      onQuery={setQuery}
      entries={entries}
      onClose={close}
      onBack={() => setFolder(folder.split("/").slice(0, -1).join("/"))}
      onPick={(id, more) => {
        if (id.startsWith(FOLDER)) return enter(id.slice(FOLDER.length));
        const type = catalog.get(id);
        if (!more) close();
        if (type === undefined) return;
        const { x, y } = flow.screenToFlowPosition(asking);
        useDocuments
          .getState()
          .change(session.id, `add ${type.title}`, (doc) => placed(doc, type, x, y, pending));
        useSettings.getState().use(id);
        selectLast();
        if (!more) document.querySelector<HTMLElement>("main.canvas")?.focus();
      }}
    />
  );
}

const MOST = 200; // that are listed
const LATELY = 8;
const FOLDER = "folder/"; // before the name of a category

function entryOf(type: NodeType): Entry {
  const [help] = type.description.split("\n");
  return {
    id: type.name,
    title: type.title,
    detail: `${type.category} · ${type.pack}`,
    below: [socketsOf(type), help].filter(Boolean).join(" · "),
    help: type.description,
  };
}

/** Which slot of a new node takes the end of the link: wires before widgets. */
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

function placed(graph: Doc, type: NodeType, x: number, y: number, pending: Pending | null): Doc {
  const added = withNode(graph, type, { x, y });
  const slot = pending === null ? null : slotFor(type, pending);
  const made = nodesOf(added).at(-1);
  if (pending === null || slot === null || made === undefined) return added;
  return pending.side === "from"
    ? connect(added, pending.end, { node: made.id, slot }, pending.end.type)
    : linked(added, { node: made.id, slot, type: made.outputs[slot]?.type ?? "*" }, pending.end);
}
