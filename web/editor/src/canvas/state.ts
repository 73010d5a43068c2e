/** Holds what other parts may know of and ask from the canvas in front. */
import type { Viewport } from "@xyflow/react";
import { create } from "zustand";
import type { Input, Output } from "../catalog/ends";
import type { Guide } from "../document/aligning";
import type { FieldName } from "../widgets/values";

/** One end of a link that is being drawn. */
export type Pending =
  { readonly side: "from"; readonly end: Output } | { readonly side: "to"; readonly end: Input };

interface Asking {
  readonly x: number;
  readonly y: number;
  readonly pending: Pending | null;
}

/** A menu at the pointer; `what` was clicked, "" for the canvas, and which field of it. */
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
  /** Nodes and groups. */
  readonly selected: ReadonlySet<string>;
  /** Links that are selected. */
  readonly links: ReadonlySet<string>;
  /** Where a node is to be added; null while nobody asks for one. */
  readonly asking: Asking | null;
  readonly menu: Menu | null;
  readonly connecting: Pending | null;
  /** The link that the dragged node is put into where it is dropped. */
  readonly into: number | null;
  /** Along what the dragged nodes are aligned. */
  readonly guides: readonly Guide[];
  /** Whether the graph is large, and seen from where its texts cannot be read. */
  readonly large: boolean;
  readonly far: boolean;
  /** Whose title is being written. */
  readonly renaming: string | null;
  /** Where each graph was looked at last, by session and path. */
  readonly views: Readonly<Record<string, Viewport>>;
  readonly ask: () => void;
  /** The middle of what is in view. */
  readonly middle: () => { readonly x: number; readonly y: number };
  /** The middle of what is in view, and how large it is seen. */
  readonly view: () => Seen;
  readonly look: (at: Seen) => void;
  readonly fit: (nodes?: ReadonlySet<string>) => void;
  readonly zoom: (to: number | "in" | "out") => void;
  readonly select: (nodes: ReadonlySet<string>, links?: ReadonlySet<string>) => void;
  /** Brings a node into view, if it is not. */
  readonly reveal: (node: string) => void;
  readonly jump: (node: string) => void;
  /** The sizes of nodes as they are drawn. */
  readonly sizes: () => ReadonlyMap<string, { readonly width: number; readonly height: number }>;
  /** The heights of the ends of links as they are drawn. */
  readonly ends: () => ReadonlyMap<number, { readonly fromY: number; readonly toY: number }>;
  /** Takes in where the ends of links of these are, which were measured. */
  readonly settle: (nodes: ReadonlySet<string>) => void;
  /** The pointer's place in the graph. */
  readonly pointer: () => { readonly x: number; readonly y: number };
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
