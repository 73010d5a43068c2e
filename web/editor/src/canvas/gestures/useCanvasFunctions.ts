/** Publishes the pointer position and the canvas functions that other parts call. */
import { useReactFlow } from "@xyflow/react";
import {
  type MouseEvent,
  type PointerEvent,
  type RefObject,
  type SetStateAction,
  useCallback,
  useEffect,
  useRef,
} from "react";
import { insert } from "../../commands/edits/nodes";
import { fieldAt } from "../../commands/fields";
import { openFiles } from "../../commands/run";
import { linkName, type Pending, useCanvas } from "../../state/canvas";
import { notify } from "../../state/live";
import { viewportFor } from "../fit";
import { type Drawn, measured } from "../layout";
import { endAt } from "../links/ends";
import type { WireEdge } from "../links/Wire";

/** Duration of viewport moves in milliseconds; 0 if the user prefers reduced motion. */
const pace = () => ({
  duration: matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : 150,
});
const NOTHING: ReadonlySet<string> = new Set();

export function useCanvasFunctions(
  setNodes: (next: SetStateAction<Drawn[]>) => void,
  setLinks: (next: ReadonlySet<string>) => void,
  edges: RefObject<readonly WireEdge[]>,
) {
  const flow = useReactFlow<Drawn, WireEdge>();
  const pointer = useRef({ x: 200, y: 200 });
  const ask = useCallback((x: number, y: number, pending: Pending | null = null) => {
    useCanvas.setState({ asking: { x, y, pending }, menu: null });
  }, []);

  useEffect(() => {
    const select = (chosen: ReadonlySet<string>, lines: ReadonlySet<string> = NOTHING) => {
      setNodes((all) => all.map((one) => ({ ...one, selected: chosen.has(one.id) })));
      setLinks(lines);
    };
    const middle = () => {
      const box = document.querySelector(".canvas")?.getBoundingClientRect();
      return flow.screenToFlowPosition({
        x: (box?.left ?? 0) + (box?.width ?? 0) / 2,
        y: (box?.top ?? 0) + (box?.height ?? 0) / 2,
      });
    };
    useCanvas.setState({
      selected: NOTHING,
      asking: null,
      menu: null,
      connecting: null,
      renaming: null,
      middle,
      view: () => ({ ...middle(), zoom: flow.getZoom() }),
      look: ({ x, y, zoom }) => void flow.setCenter(x, y, { zoom, ...pace() }),
      ask: () => ask(pointer.current.x, pointer.current.y),
      fit: (chosen) => {
        const view = viewportFor(flow, (id) => chosen?.has(id) !== false, 0.08);
        if (view !== null) void flow.setViewport(view, pace());
      },
      zoom: (to) => {
        if (to === "in") void flow.zoomIn();
        else if (to === "out") void flow.zoomOut();
        else void flow.zoomTo(to);
      },
      select,
      reveal: (node) => {
        const shown = flow.getNode(node);
        const box = document.querySelector(".canvas")?.getBoundingClientRect();
        if (shown === undefined || box === undefined) return;
        const [width, height] = [shown.measured?.width ?? 0, shown.measured?.height ?? 0];
        const first = flow.flowToScreenPosition(shown.position);
        const last = flow.flowToScreenPosition({
          x: shown.position.x + width,
          y: shown.position.y + height,
        });
        const inView =
          first.x >= box.left && first.y >= box.top && last.x <= box.right && last.y <= box.bottom;
        if (!inView)
          void flow.setCenter(shown.position.x + width / 2, shown.position.y + height / 2, {
            zoom: flow.getZoom(),
          });
      },
      jump: (node) => {
        select(new Set([node]));
        const view = viewportFor(flow, (id) => id === node, 0.6);
        if (view !== null) void flow.setViewport(view, pace());
      },
      sizes: () =>
        new Map(
          flow.getNodes().map(({ id, measured, width = 0, initialHeight = 0 }) => {
            return [
              id,
              { width: measured?.width ?? width, height: measured?.height ?? initialHeight },
            ];
          }),
        ),
      ends: () =>
        new Map(
          edges.current.flatMap(({ id, source, sourceHandle, target, targetHandle }) => {
            const from = endAt(flow.getInternalNode(source), "source", sourceHandle);
            const to = endAt(flow.getInternalNode(target), "target", targetHandle);
            return from === null || to === null ? [] : [[Number(id), { fromY: from.y, toY: to.y }]];
          }),
        ),
      settle: (measuredNow) => setNodes((all) => measured(all, measuredNow)),
      pointer: () => flow.screenToFlowPosition(pointer.current),
    });
  }, [ask, edges, flow, setLinks, setNodes]);

  useEffect(() => {
    const paste = (event: ClipboardEvent) => {
      if (event.target instanceof HTMLElement && event.target.closest("input, textarea")) return;
      const files = [...(event.clipboardData?.files ?? [])];
      if (files.length > 0) return void openFiles(files);
      const text = event.clipboardData?.getData("text/plain") ?? "";
      const { x, y } = flow.screenToFlowPosition(pointer.current);
      if (insert(text, { x, y }, "paste")) return;
      const file = new File([text], "pasted.json");
      if (text.trimStart().startsWith("{")) void openFiles([file]);
      else if (text !== "") notify("The clipboard contains neither nodes nor a workflow");
    };
    window.addEventListener("paste", paste);
    return () => window.removeEventListener("paste", paste);
  }, [flow]);

  const onPointerMove = useCallback((event: PointerEvent) => {
    pointer.current = { x: event.clientX, y: event.clientY };
  }, []);

  const onContextMenu = useCallback((event: MouseEvent) => {
    if (!(event.target instanceof Element) || event.target.closest("input, textarea")) return;
    event.preventDefault();
    const node = event.target.closest(".react-flow__node")?.getAttribute("data-id") ?? "";
    const edge = event.target.closest<HTMLElement>(".react-flow__edge, .link-badge");
    const link = edge?.dataset.id ?? "";
    const { selected, links, select } = useCanvas.getState();
    if (node !== "" && !selected.has(node)) select(new Set([node]));
    if (link !== "" && !links.has(link)) select(NOTHING, new Set([link]));
    const what = link === "" ? node : linkName(link);
    const field = fieldAt(event.target);
    useCanvas.setState({ menu: { x: event.clientX, y: event.clientY, what, field } });
  }, []);

  return { ask, onPointerMove, onContextMenu };
}
