/** Turns drawn, detached and dropped links into commands. */
import type {
  Connection,
  Edge,
  FinalConnectionState,
  HandleType,
  OnConnectStartParams,
} from "@xyflow/react";
import { useCallback, useRef } from "react";
import { fittingInput, inputAt, linked, outputAt, whyNot } from "../../catalog/ends";
import { removeLinks } from "../../document/links";
import type { Doc } from "../../document/model";
import { type Pending, useCanvas } from "../../state/canvas";
import { notify, useLive } from "../../state/live";

type Change = (label: string, edit: (graph: Doc) => Doc) => void;

export function useLinkDrag(
  graph: Doc,
  change: Change,
  ask: (x: number, y: number, pending: Pending) => void,
) {
  const pulled = useRef(false);

  const endsOf = useCallback(
    (link: Connection | Edge) => {
      const { catalog } = useLive.getState();
      const from = outputAt(graph, link.source, link.sourceHandle);
      const to = inputAt(graph, catalog, link.target, link.targetHandle);
      return from === null || to === null ? null : { from, to };
    },
    [graph],
  );

  const isValidConnection = useCallback(
    (link: Connection | Edge) => {
      const ends = endsOf(link);
      return ends !== null && whyNot(graph, ends.from, ends.to) === null;
    },
    [endsOf, graph],
  );

  const onConnect = useCallback(
    (link: Connection) => {
      const ends = endsOf(link);
      if (ends !== null) change("connect", (now) => linked(now, ends.from, ends.to));
    },
    [change, endsOf],
  );

  const pendingOf = useCallback(
    (node: string | null, handle: string | null, type: HandleType | null): Pending | null => {
      if (node === null) return null;
      if (type === "source") {
        const end = outputAt(graph, node, handle);
        return end && { side: "from", end };
      }
      const end = inputAt(graph, useLive.getState().catalog, node, handle);
      return end && { side: "to", end };
    },
    [graph],
  );

  const onConnectStart = useCallback(
    (_: unknown, { nodeId, handleId, handleType }: OnConnectStartParams) =>
      useCanvas.setState({ connecting: pendingOf(nodeId, handleId, handleType) }),
    [pendingOf],
  );

  const onConnectEnd = useCallback(
    (event: MouseEvent | TouchEvent, state: FinalConnectionState) => {
      useCanvas.setState({ connecting: null });
      if (state.isValid || pulled.current) return;
      const { fromNode, fromHandle, toNode, toHandle } = state;
      const pending = pendingOf(
        fromNode?.id ?? null,
        fromHandle?.id ?? null,
        fromHandle?.type ?? null,
      );
      if (pending === null) return;
      if (toNode && toHandle) {
        const why = refused(graph, pending, toNode.id, toHandle.id ?? null);
        if (why !== null) notify(why);
        return;
      }
      const { clientX, clientY } = "clientX" in event ? event : (event.changedTouches[0] ?? {});
      if (clientX === undefined || clientY === undefined) return;
      const under = document.elementFromPoint(clientX, clientY);
      const body = under?.closest(".react-flow__node")?.getAttribute("data-id");
      if (body && pending.side === "from") dropOn(graph, change, pending.end, body);
      else if (under?.classList.contains("react-flow__pane")) ask(clientX, clientY, pending);
    },
    [ask, change, graph, pendingOf],
  );

  const onReconnectStart = useCallback(() => {
    pulled.current = true;
  }, []);

  const onReconnect = useCallback(
    (edge: Edge, link: Connection) => {
      const ends = endsOf(link);
      if (ends !== null)
        change("move a link", (now) =>
          linked(removeLinks(now, new Set([Number(edge.id)])), ends.from, ends.to),
        );
    },
    [change, endsOf],
  );

  const onReconnectEnd = useCallback(
    (_: unknown, edge: Edge, __: HandleType, state: FinalConnectionState) => {
      pulled.current = false;
      if (!state.isValid)
        change("cut a link", (now) => removeLinks(now, new Set([Number(edge.id)])));
    },
    [change],
  );

  return {
    isValidConnection,
    onConnect,
    onConnectStart,
    onConnectEnd,
    onReconnectStart,
    onReconnect,
    onReconnectEnd,
  };
}

function refused(graph: Doc, pending: Pending, node: string, handle: string | null): string | null {
  const { catalog } = useLive.getState();
  if (pending.side === "from") {
    const to = inputAt(graph, catalog, node, handle);
    return to && whyNot(graph, pending.end, to);
  }
  const from = outputAt(graph, node, handle);
  return from && whyNot(graph, from, pending.end);
}

/** Connects a link that was dropped on a node's body to the first free compatible input. */
function dropOn(
  graph: Doc,
  change: Change,
  from: Parameters<typeof linked>[1],
  node: string,
): void {
  const to = fittingInput(graph, useLive.getState().catalog, node, from);
  if (to === null) return notify(`no input there accepts ${from.type}`);
  const why = whyNot(graph, from, to);
  if (why !== null) notify(why);
  else change("connect", (now) => linked(now, from, to));
}
