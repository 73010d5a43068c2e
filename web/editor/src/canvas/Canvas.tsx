/**
 * Draws the graph in view and turns gestures into commands on it. Only this folder knows React
 * Flow.
 */
import {
  applyNodeChanges,
  ControlButton,
  Controls,
  type EdgeChange,
  type NodeChange,
  ReactFlow,
  ReactFlowProvider,
  SelectionMode,
  useReactFlow,
  useStore,
} from "@xyflow/react";
import { Maximize } from "lucide-react";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { CHOICE, loadPictures, NODE_TYPE, placeChosen, withNode } from "../commands/addNode";
import { type Doc, nodesOf } from "../document/model";
import { useCanvas } from "../state/canvas";
import { graphOf, type Session, useDocuments } from "../state/documents";
import { IMAGES_TYPE } from "../ui/imageDrag";
import { AddNode } from "./AddNode";
import { viewportFor, MIN_ZOOM } from "./fit";
import { LinkCutter } from "./gestures/LinkCutter";
import { withReroute } from "./gestures/reroute";
import { useCanvasFunctions } from "./gestures/useCanvasFunctions";
import { useLinkDrag } from "./gestures/useLinkDrag";
import { insertedInto, linkAt } from "./gestures/useLinkInsertion";
import { useNodeDrag } from "./gestures/useNodeDrag";
import { Grid } from "./Grid";
import { Guides } from "./Guides";
import { FarLinks, NodeBoxes } from "./large";
import { computed, type Drawn, drawnEdges, drawnNodes, measured } from "./layout";
import { Wire, type WireEdge } from "./links/Wire";
import { Menu } from "./Menu";
import { BoundaryCard } from "./nodes/Boundary";
import { Card } from "./nodes/Card";
import { Group } from "./nodes/Group";
import { Point } from "./nodes/Point";
import { useTextSize } from "./useTextSize";
import { useView } from "./viewport";
import "./light.css";

const TYPES = { card: Card, frame: Group, boundary: BoundaryCard, point: Point };
const LINES = { wire: Wire };
const NO_SELECTION: ReadonlySet<string> = new Set();
const NO_EDGES: WireEdge[] = [];
const LARGE_GRAPH_NODES = 150;
/**
 * The zoom below which text is unreadable. Large graphs open at this zoom, at their top left
 * corner.
 */
const OUTLINE_ZOOM = 0.4;
/** Mouse buttons that pan: left on the empty canvas, middle everywhere. */
const PAN = [0, 1];

/** Returns the node drawn at a point of the page. */
function nodesAt(x: number, y: number): ReadonlySet<string> {
  const cards = document.elementsFromPoint(x, y).map((one) => one.closest("[data-node]"));
  const id = cards.find((card) => card !== null)?.getAttribute("data-node");
  return new Set(id ? [id] : []);
}

/** `covered`: whether a view covers the whole canvas; the hidden canvas then takes no focus. */
export function Canvas({
  session,
  covered,
}: {
  readonly session: Session;
  readonly covered: boolean;
}) {
  const key = [session.id, ...session.path].join(":");
  return (
    <ReactFlowProvider key={key}>
      <Flow session={session} view={key} covered={covered} />
    </ReactFlowProvider>
  );
}

function Flow({
  session,
  view,
  covered,
}: {
  readonly session: Session;
  readonly view: string;
  readonly covered: boolean;
}) {
  const graph = graphOf(session);
  const [nodes, setNodes] = useState<Drawn[]>(() => drawnNodes(graph, []));
  const [links, setLinks] = useState<ReadonlySet<string>>(NO_SELECTION);
  const { isKnown, ...following } = useView(view);
  const drawn = useRef<readonly WireEdge[]>([]);
  const edges = useMemo(() => {
    const next = drawnEdges(graph, links, drawn.current);
    drawn.current = next;
    return next;
  }, [graph, links]);

  useEffect(() => setNodes((before) => drawnNodes(graph, before)), [graph]);

  const change = useCallback(
    (label: string, edit: (graph: Doc) => Doc) =>
      useDocuments.getState().change(session.id, label, edit),
    [session.id],
  );
  const { ask, onPointerMove, onContextMenu } = useCanvasFunctions(setNodes, setLinks, drawn);
  const connecting = useLinkDrag(graph, change, ask);
  const { aligned, carry, dragging } = useNodeDrag(graph, nodes, change);

  const onNodesChange = useCallback(
    (changes: NodeChange<Drawn>[]) => {
      const placed = aligned(changes);
      if (carry(placed)) return;
      const sized = new Set(changes.flatMap((one) => (one.type === "dimensions" ? [one.id] : [])));
      setNodes((before) => measured(applyNodeChanges(placed, before), sized));
    },
    [aligned, carry],
  );

  const onSelectionChange = useCallback(
    ({ nodes: chosen, edges: lines }: { nodes: Drawn[]; edges: WireEdge[] }) => {
      useCanvas.setState({
        selected: new Set(chosen.map(({ id }) => id)),
        links: new Set(lines.map(({ id }) => id)),
      });
    },
    [],
  );

  const onEdgesChange = useCallback((changes: EdgeChange<WireEdge>[]) => {
    const chosen = changes.filter((one) => one.type === "select");
    const gone = new Set(chosen.flatMap(({ id, selected }) => (selected ? [] : [id])));
    const more = chosen.flatMap(({ id, selected }) => (selected ? [id] : []));
    setLinks((before) => new Set([...[...before].filter((id) => !gone.has(id)), ...more]));
  }, []);

  const flow = useReactFlow();
  useTextSize();
  const large = nodes.length > LARGE_GRAPH_NODES;
  const far = useStore((store) => store.transform[2] < OUTLINE_ZOOM) && large;
  useEffect(() => {
    const { far: wasFar } = useCanvas.getState();
    useCanvas.setState({ far, large });
    if (wasFar && !far) setNodes(computed); // outlines have no sockets to measure
  }, [far, large]);
  const opens = large ? OUTLINE_ZOOM : MIN_ZOOM;
  const busy = useCanvas((canvas) => canvas.connecting !== null);
  return (
    <main
      className={`canvas ${busy ? "connecting" : ""}`}
      aria-label="workflow"
      tabIndex={0}
      inert={covered}
      onPointerMove={onPointerMove}
      onDoubleClick={(event) => {
        const pane =
          event.target instanceof Element && event.target.classList.contains("react-flow__pane");
        if (pane) ask(event.clientX, event.clientY);
      }}
      onContextMenu={onContextMenu}
      onDragOver={(event) => {
        const { types } = event.dataTransfer;
        if (types.includes(NODE_TYPE) || types.includes(IMAGES_TYPE)) event.preventDefault();
      }}
      onDrop={(event) => {
        const name = event.dataTransfer.getData(NODE_TYPE);
        const pictures = event.dataTransfer.getData(IMAGES_TYPE);
        const { clientX: x, clientY: y } = event;
        if (pictures !== "") {
          event.preventDefault();
          loadPictures(pictures.split("\n"), nodesAt(x, y), flow.screenToFlowPosition({ x, y }));
        }
        if (name === "") return;
        event.preventDefault();
        const link = linkAt(x, y);
        const at = flow.screenToFlowPosition({ x, y });
        placeChosen(name, event.dataTransfer.getData(CHOICE), at, (now, type, where) => {
          const added = withNode(now, type, where);
          return insertedInto(added, nodesOf(added).at(-1)?.id ?? "", link);
        });
      }}
    >
      <ReactFlow<Drawn, WireEdge>
        nodes={nodes}
        edges={far ? NO_EDGES : edges}
        nodeTypes={TYPES}
        edgeTypes={LINES}
        onEdgeDoubleClick={({ clientX, clientY }, { id }) =>
          change("add a reroute", (now) =>
            withReroute(now, Number(id), flow.screenToFlowPosition({ x: clientX, y: clientY })),
          )
        }
        onNodesChange={onNodesChange}
        onEdgesChange={onEdgesChange}
        onSelectionChange={onSelectionChange}
        {...connecting}
        {...dragging}
        connectionRadius={24}
        reconnectRadius={14}
        deleteKeyCode={null}
        multiSelectionKeyCode={["Shift", "Control", "Meta"]}
        selectionKeyCode="Shift"
        selectionMode={SelectionMode.Partial}
        panOnDrag={PAN}
        zoomOnDoubleClick={false}
        nodesFocusable={false}
        edgesFocusable={false}
        disableKeyboardA11y
        minZoom={MIN_ZOOM}
        maxZoom={4}
        {...following}
        onInit={(instance) => {
          const all = isKnown ? null : viewportFor(instance, () => true, 0.08, opens);
          if (all !== null) void instance.setViewport(all);
        }}
        onlyRenderVisibleElements={large}
        proOptions={{ hideAttribution: true }}
      >
        <Grid />
        <Guides />
        {far && <FarLinks edges={edges} />}
        <Controls showInteractive={false} showFitView={false}>
          <ControlButton
            title="Fit view"
            aria-label="Fit view"
            onClick={() => useCanvas.getState().fit()}
          >
            <Maximize />
          </ControlButton>
        </Controls>
        {nodes.length > 0 && <NodeBoxes nodes={nodes} large={large} />}
      </ReactFlow>
      <LinkCutter change={change} />
      <AddNode />
      <Menu />
    </main>
  );
}
