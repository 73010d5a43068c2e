/** Searches for a node type and places it, linked to the end of a link that was dropped. */
import { useReactFlow } from "@xyflow/react";
import { useMemo, useState } from "react";
import { compatible, type NodeType, searched, socketOf } from "../catalog/catalog";
import { connect } from "../document/links";
import { type Doc, nodesOf } from "../document/model";
import { selectLast, withNode } from "../shell/adding";
import { type Session, useDocuments } from "../shell/documents";
import { useLive } from "../shell/live";
import { Picker } from "../dialogs/Picker";
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
      label={pending === null ? "Add a node" : `Add a node for ${pending.end.type}`}
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
        selectLast();
        document.querySelector<HTMLElement>("main.canvas")?.focus();
      }}
    />
  );
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
