/** Draws the document in front and turns gestures into its commands. Only here is React Flow known. */
import {
  applyNodeChanges,
  Background,
  type Connection,
  Controls,
  type Edge,
  type FinalConnectionState,
  MiniMap,
  type NodeChange,
  ReactFlow,
  ReactFlowProvider,
  useReactFlow,
} from "@xyflow/react";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { compatible } from "../catalog/catalog";
import { pasted } from "../document/clipboard";
import { connect, moveNodes, removeLinks, removeNodes } from "../document/commands";
import { type Doc, nodesOf } from "../document/model";
import { docOf, type Session, useDocuments } from "../shell/documents";
import { openFiles } from "../shell/running";
import { AddNode } from "./AddNode";
import { Card } from "./Card";
import { Group } from "./Group";
import { type Drawn, drawnEdges, drawnNodes, slotOf } from "./layout";
import { type Pending, useCanvas } from "./state";

const TYPES = { card: Card, group: Group };
const NO_SELECTION: ReadonlySet<string> = new Set();
const FIT = { padding: 0.12, maxZoom: 1 };

export function Canvas({ session }: { readonly session: Session }) {
  return (
    <ReactFlowProvider key={session.id}>
      <Flow session={session} />
    </ReactFlowProvider>
  );
}

function Flow({ session }: { readonly session: Session }) {
  const doc = docOf(session);
  const flow = useReactFlow<Drawn, Edge>();
  const [nodes, setNodes] = useState<Drawn[]>(() => drawnNodes(doc, []));
  const [links, setLinks] = useState<ReadonlySet<string>>(NO_SELECTION);
  const pointer = useRef({ x: 200, y: 200 });
  const edges = useMemo(() => drawnEdges(doc, links), [doc, links]);

  useEffect(() => setNodes((before) => drawnNodes(doc, before)), [doc]);

  const change = useCallback(
    (label: string, edit: (doc: Doc) => Doc) =>
      useDocuments.getState().change(session.id, label, edit),
    [session.id],
  );

  const ask = useCallback((x: number, y: number, pending: Pending | null = null) => {
    useCanvas.setState({ asking: { x, y, pending } });
  }, []);

  useEffect(() => {
    useCanvas.setState({
      selected: NO_SELECTION,
      asking: null,
      ask: () => ask(pointer.current.x, pointer.current.y),
      fit: () => void flow.fitView(FIT),
      jump: (node) => {
        setNodes((all) => all.map((one) => ({ ...one, selected: one.id === node })));
        void flow.fitView({ nodes: [{ id: node }], maxZoom: 1, padding: 0.6, duration: 200 });
      },
    });
  }, [ask, flow]);

  useEffect(() => {
    const paste = (event: ClipboardEvent) => {
      if (event.target instanceof HTMLElement && event.target.closest("input, textarea")) return;
      const files = [...(event.clipboardData?.files ?? [])];
      if (files.length > 0) return void openFiles(files);
      const text = event.clipboardData?.getData("text/plain") ?? "";
      const { x, y } = flow.screenToFlowPosition(pointer.current);
      change("paste", (now) => pasted(now, text, x, y)?.doc ?? now);
    };
    window.addEventListener("paste", paste);
    return () => window.removeEventListener("paste", paste);
  }, [change, flow]);

  const onNodesChange = useCallback((changes: NodeChange<Drawn>[]) => {
    setNodes((before) => applyNodeChanges(changes, before));
  }, []);

  const onSelectionChange = useCallback(
    ({ nodes: chosen, edges: lines }: { nodes: Drawn[]; edges: Edge[] }) => {
      useCanvas.setState({ selected: new Set(chosen.map(({ id }) => id)) });
      setLinks((before) => {
        const next = new Set(lines.map(({ id }) => id));
        return next.size === before.size && [...next].every((id) => before.has(id)) ? before : next;
      });
    },
    [],
  );

  const onMoved = useCallback(
    (_: unknown, __: unknown, moved: Drawn[]) => {
      const places = new Map(moved.map(({ id, position }) => [id, position]));
      change(moved.length > 1 ? `move ${moved.length} nodes` : "move", (now) =>
        moveNodes(now, places),
      );
    },
    [change],
  );

  const onBeforeDelete = useCallback(
    async ({ nodes: gone, edges: cut }: { nodes: Drawn[]; edges: Edge[] }) => {
      change(gone.length > 0 ? "delete" : "cut a link", (now) =>
        removeNodes(
          removeLinks(now, new Set(cut.map(({ id }) => Number(id)))),
          new Set(gone.map(({ id }) => id)),
        ),
      );
      return false; // the document has changed, and what is drawn follows it
    },
    [change],
  );

  const typesOf = useCallback(
    (link: Connection | Edge) => {
      const all = nodesOf(doc);
      const from = all.find(({ id }) => id === link.source)?.outputs[slotOf(link.sourceHandle)];
      const to = all.find(({ id }) => id === link.target)?.inputs[slotOf(link.targetHandle)];
      return from === undefined || to === undefined ? null : ([from.type, to.type] as const);
    },
    [doc],
  );

  const isValid = useCallback(
    (link: Connection | Edge) => {
      const types = typesOf(link);
      return link.source !== link.target && types !== null && compatible(...types);
    },
    [typesOf],
  );

  const onConnect = useCallback(
    (link: Connection) => {
      const types = typesOf(link);
      if (types === null) return;
      const from = { node: link.source, slot: slotOf(link.sourceHandle) };
      const to = { node: link.target, slot: slotOf(link.targetHandle) };
      change("connect", (now) => connect(now, from, to, types[0]));
    },
    [change, typesOf],
  );

  const onConnectEnd = useCallback(
    (event: MouseEvent | TouchEvent, state: FinalConnectionState) => {
      const onPane = event.target instanceof Element && event.target.closest(".react-flow__pane");
      const { fromNode, fromHandle } = state;
      if (state.isValid || !onPane || !fromNode || !fromHandle || !("clientX" in event)) return;
      const node = nodesOf(doc).find(({ id }) => id === fromNode.id);
      const slot = slotOf(fromHandle.id);
      const side = fromHandle.type === "source" ? "from" : "to";
      const type = (side === "from" ? node?.outputs[slot] : node?.inputs[slot])?.type ?? "*";
      ask(event.clientX, event.clientY, { node: fromNode.id, slot, side, type });
    },
    [ask, doc],
  );

  return (
    <main
      className="canvas"
      aria-label="workflow"
      onPointerMove={(event) => {
        pointer.current = { x: event.clientX, y: event.clientY };
      }}
      onDoubleClick={(event) => {
        const pane = event.target instanceof Element && event.target.closest(".react-flow__pane");
        if (pane) ask(event.clientX, event.clientY);
      }}
    >
      <ReactFlow<Drawn, Edge>
        nodes={nodes}
        edges={edges}
        nodeTypes={TYPES}
        onNodesChange={onNodesChange}
        onSelectionChange={onSelectionChange}
        onNodeDragStop={onMoved}
        onBeforeDelete={onBeforeDelete}
        onConnect={onConnect}
        onConnectEnd={onConnectEnd}
        isValidConnection={isValid}
        connectionRadius={24}
        deleteKeyCode={["Delete", "Backspace"]}
        multiSelectionKeyCode="Shift"
        selectionKeyCode="Shift"
        zoomOnDoubleClick={false}
        minZoom={0.05}
        maxZoom={4}
        fitView
        fitViewOptions={FIT}
        onlyRenderVisibleElements={nodes.length > 150}
        proOptions={{ hideAttribution: true }}
      >
        <Background gap={24} />
        <Controls showInteractive={false} />
        {nodes.length > 0 && (
          <MiniMap pannable zoomable nodeClassName={(node) => `mini-${node.type}`} />
        )}
      </ReactFlow>
      <AddNode session={session} />
    </main>
  );
}
