/** Holds what the page shows besides documents: one dialog at a time, folded panels, a picture. */
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

/** Pictures of which one is shown large. */
export interface Pictures {
  readonly addresses: readonly string[];
  readonly at: number;
}

export interface Pointed {
  readonly operation: string;
  readonly node: string;
}

/** A widget with a picture whose mask is painted. */
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
  /** A node type whose help was asked for, and one of its inputs; "" for the whole. */
  readonly help: { readonly type: string; readonly input: string } | null;
  /** Whether plans are made while editing, and drawn over the graph. */
  readonly overlay: boolean;
  /** Whether nodes are coloured by what they took. */
  readonly heat: boolean;
  /** The sampler whose step is looked at in place of the graph, by session and node. */
  readonly step: { readonly session: string; readonly node: string } | null;
  /** What is pointed at in a timeline or an opened step: an operation of a plan, and its node. */
  readonly pointed: Pointed | null;
  readonly masking: Masking | null;
  readonly pictures: Pictures | null;
  /** Whether the gallery shows only what has a star. */
  readonly starred: boolean;
  /** Pictures of the gallery that were picked to be compared; null while none is to be picked. */
  readonly picking: readonly string[] | null;
  /** Two pictures that are compared, by their addresses. */
  readonly compared: readonly [string, string] | null;
  /** A file that somebody else has changed, while a choice is asked for. */
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
