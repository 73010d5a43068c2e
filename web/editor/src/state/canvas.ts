/** Holds the state of the active canvas, and the functions that other parts may call on it. */
import type { Viewport } from "@xyflow/react";
import { create } from "zustand";
import type { Input, Output } from "../catalog/ends";
import type { Guide } from "../document/layout/alignment";

/** A widget of a node in the graph in view. */
export interface FieldName {
  readonly node: string;
  readonly widget: string;
}

/** The fixed end of a link that is being drawn. */
export type Pending =
  { readonly side: "from"; readonly end: Output } | { readonly side: "to"; readonly end: Input };

interface Asking {
  readonly x: number;
  readonly y: number;
  readonly pending: Pending | null;
}

/**
 * The context menu at the pointer. `what`: the clicked element, "" for the canvas; `field`: its
 * field.
 */
interface Menu {
  readonly x: number;
  readonly y: number;
  readonly what: string;
  readonly field: FieldName | null;
}

interface Seen {
  readonly x: number;
  readonly y: number;
  readonly zoom: number;
}

interface CanvasState {
  /** The selected nodes and groups. */
  readonly selected: ReadonlySet<string>;
  /** The selected links. */
  readonly links: ReadonlySet<string>;
  /** The position of the "add node" search; null while it is closed. */
  readonly asking: Asking | null;
  readonly menu: Menu | null;
  readonly connecting: Pending | null;
  /** The link into which the dragged node would be inserted. */
  readonly into: number | null;
  /** The lines along which dragged nodes align. */
  readonly guides: readonly Guide[];
  /** Whether the graph is large, and whether its zoom is too low to read text. */
  readonly large: boolean;
  readonly far: boolean;
  /** The element whose title is being edited. */
  readonly renaming: string | null;
  /** The last viewport of each graph, by session and path. */
  readonly views: Readonly<Record<string, Viewport>>;
  readonly ask: () => void;
  /** Returns the centre of the viewport. */
  readonly middle: () => { readonly x: number; readonly y: number };
  /** Returns the centre and zoom of the viewport. */
  readonly view: () => Seen;
  readonly look: (at: Seen) => void;
  readonly fit: (nodes?: ReadonlySet<string>) => void;
  readonly zoom: (to: number | "in" | "out") => void;
  readonly select: (nodes: ReadonlySet<string>, links?: ReadonlySet<string>) => void;
  /** Scrolls a node into view if it is outside. */
  readonly reveal: (node: string) => void;
  readonly jump: (node: string) => void;
  /** Returns the sizes of nodes as drawn. */
  readonly sizes: () => ReadonlyMap<string, { readonly width: number; readonly height: number }>;
  /** Returns the vertical positions of link ends as drawn. */
  readonly ends: () => ReadonlyMap<number, { readonly fromY: number; readonly toY: number }>;
  /** Uses the measured link ends of these nodes from now on. */
  readonly settle: (nodes: ReadonlySet<string>) => void;
  /** Returns the pointer position in graph coordinates. */
  readonly pointer: () => { readonly x: number; readonly y: number };
}

/** Returns the key under which a link is renamed. */
export function linkName(link: string): string {
  return `link:${link}`;
}

const nothing = () => {};

export const useCanvas = create<CanvasState>(() => ({
  selected: new Set(),
  links: new Set(),
  asking: null,
  menu: null,
  connecting: null,
  into: null,
  guides: [],
  large: false,
  far: false,
  renaming: null,
  views: {},
  ask: nothing,
  middle: () => ({ x: 0, y: 0 }),
  view: () => ({ x: 0, y: 0, zoom: 1 }),
  look: nothing,
  fit: nothing,
  zoom: nothing,
  select: nothing,
  reveal: nothing,
  jump: nothing,
  sizes: () => new Map(),
  ends: () => new Map(),
  settle: nothing,
  pointer: () => ({ x: 0, y: 0 }),
}));
