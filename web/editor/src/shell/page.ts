/** Holds what the page shows besides documents: one dialog at a time, folded panels, a picture. */
import { create } from "zustand";

export type Dialog = "templates" | "palette" | "keys" | "find" | "colour";

interface Page {
  readonly dialog: Dialog | null;
  readonly side: "jobs" | "plan" | null;
  /** The address of the picture that is shown large. */
  readonly picture: string | null;
}

export const usePage = create<Page>(() => ({ dialog: null, side: null, picture: null }));
