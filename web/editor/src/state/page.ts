/** Holds the page's state apart from documents: the open dialog, side panel and images. */
import { create } from "zustand";
import type { Conflict } from "../server/workflows";

export type Dialog =
  | "templates"
  | "connect"
  | "palette"
  | "keys"
  | "find"
  | "colour"
  | "save-as"
  | "replace"
  | "swap"
  | "peek"
  | "sweep"
  | "rename-subgraph"
  | "link-types"
  | "bookmarks"
  | "versions"
  | "appearance";
export type Side =
  | "jobs"
  | "plan"
  | "files"
  | "gallery"
  | "nodes"
  | "steps"
  | "packs"
  | "models"
  | "devices"
  | "form";

/** Images of which one is shown large. */
export interface Pictures {
  readonly addresses: readonly string[];
  readonly at: number;
}

export interface Pointed {
  readonly operation: string;
  readonly node: string;
}

/** An image widget whose mask is being painted. */
export interface Masking {
  readonly session: string;
  readonly node: string;
  readonly widget: string;
  readonly key: number | string;
  readonly value: string;
}

interface Page {
  readonly dialog: Dialog | null;
  readonly side: Side | null;
  /** The node type whose help is shown, and one of its inputs, or "". */
  readonly help: { readonly type: string; readonly input: string } | null;
  /** Whether documents are planned while edited, with the plan drawn over the graph. */
  readonly overlay: boolean;
  /** Whether nodes are coloured by their time. */
  readonly heat: boolean;
  /** The sampler whose step replaces the graph in view, by session and node. */
  readonly step: { readonly session: string; readonly node: string } | null;
  /** The operation highlighted in a timeline or opened step, and its node. */
  readonly pointed: Pointed | null;
  readonly masking: Masking | null;
  readonly pictures: Pictures | null;
  /** Whether the gallery shows only starred images. */
  readonly starred: boolean;
  /** Images picked in the gallery for a comparison; null if not picking. */
  readonly picking: readonly string[] | null;
  /** The addresses of the two compared images. */
  readonly compared: readonly [string, string] | null;
  /** A file changed by another page, while the user is asked how to resolve it. */
  readonly conflict: Conflict | null;
}

export const usePage = create<Page>(() => ({
  dialog: null,
  side: null,
  help: null,
  overlay: true,
  heat: false,
  step: null,
  pointed: null,
  masking: null,
  pictures: null,
  starred: false,
  picking: null,
  compared: null,
  conflict: null,
}));
