/** Holds what the page shows besides documents: one dialog at a time, folded panels, a picture. */
import { create } from "zustand";
import type { Conflict } from "../server/workflows";

export type Dialog = "templates" | "palette" | "keys" | "find" | "colour" | "save-as";
export type Side = "jobs" | "plan" | "files" | "gallery";

interface Page {
  readonly dialog: Dialog | null;
  readonly side: Side | null;
  /** The address of the picture that is shown large. */
  readonly picture: string | null;
  /** A file that somebody else has changed, while a choice is asked for. */
  readonly conflict: Conflict | null;
}

export const usePage = create<Page>(() => ({
  dialog: null,
  side: null,
  picture: null,
  conflict: null,
}));
