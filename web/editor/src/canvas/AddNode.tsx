/** Searches for a node type and places it, linked to the end of a link that was dropped. */
import { useReactFlow } from "@xyflow/react";
import { useMemo, useState } from "react";
import { compatible, type NodeType, newNode, searched } from "../catalog/catalog";
import { addNode, connect } from "../document/commands";
import { type Doc, nodesOf } from "../document/model";
import { type Session, useDocuments } from "../shell/documents";
import { useLive } from "../shell/live";
import { Picker } from "../shell/Picker";
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
  const { pending } = asking;
  const found = useMemo(
    () =>
      searched(catalog, query)
        .filter((type) => pending === null || slotFor(type, pending) !== null)
        .slice(0, 200),
    [catalog, query, pending],
  );
  const close = () => useCanvas.setState({ asking: null });
  return (
    <Picker
      label={pending === null ? "Add a node" : `Add a node for ${pending.type}`}
      query={query}
      onQuery={setQuery}
      entries={found.map((type) => ({
        id: type.name,
        title: type.title,
        detail: type.category,
        help: type.description,
      }))}
      onClose={close}
      onPick={(name) => {
        const type = catalog.get(name);
        close();
        if (type === undefined) return;
        const { x, y } = flow.screenToFlowPosition(asking);
        useDocuments
          .getState()
          .change(session.id, `add ${type.title}`, (doc) => placed(doc, type, x, y, pending));
      }}
    />
  );
}

function slotFor(type: NodeType, pending: Pending): number | null {
  const place =
    pending.side === "from"
      ? type.sockets.findIndex((socket) => compatible(pending.type, socket.type))
      : type.outputs.findIndex((output) => compatible(output.type, pending.type));
  return place < 0 ? null : place;
}

function placed(doc: Doc, type: NodeType, x: number, y: number, pending: Pending | null): Doc {
  const added = addNode(doc, newNode(type, Math.round(x), Math.round(y)));
  const slot = pending === null ? null : slotFor(type, pending);
  const made = nodesOf(added).at(-1);
  if (pending === null || slot === null || made === undefined) return added;
  const [here, there] = [
    { node: made.id, slot },
    { node: pending.node, slot: pending.slot },
  ];
  return pending.side === "from"
    ? connect(added, there, here, pending.type)
    : connect(added, here, there, made.outputs[slot]?.type ?? pending.type);
}
