/** Holds what other parts may know of and ask from the canvas in front. */
import { create } from "zustand";

/** What a new node is to be linked to: one end of a link that was dropped on the canvas. */
export interface Pending {
  readonly node: string;
  readonly slot: number;
  readonly side: "from" | "to";
  readonly type: string;
}

interface Asking {
  readonly x: number;
  readonly y: number;
  readonly pending: Pending | null;
}

interface CanvasState {
  readonly selected: ReadonlySet<string>;
  /** Where a node is to be added; null while nobody asks for one. */
  readonly asking: Asking | null;
  readonly ask: () => void;
  readonly fit: () => void;
  readonly jump: (node: string) => void;
}

const nothing = () => {};

export const useCanvas = create<CanvasState>(() => ({
  selected: new Set(),
  asking: null,
  ask: nothing,
  fit: nothing,
  jump: nothing,
}));
