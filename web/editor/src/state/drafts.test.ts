import { expect, test } from "vitest";
import { begin } from "../document/history";
import type { Doc } from "../document/model";
import { newSession, type Session } from "./documents";
import { dueOf } from "./drafts";

const DOC: Doc = { nodes: [], links: [] };
const EDITED: Doc = { nodes: [], links: [], extra: {} };
const session = (given: Partial<Session>): Session => ({ ...newSession("a", DOC), ...given });

test("P0.17 a changed document is stored once, and its draft is deleted when it is saved", () => {
  const opened = session({});
  const changed = session({ history: begin(EDITED) });
  const draft = { path: "a 01234567.json", version: "1" };
  const saved = session({ draft, history: begin(EDITED), saved: EDITED });
  const all = [opened, changed, saved];
  expect(dueOf(all)).toEqual({ keep: [changed], forget: [saved] });
  expect(dueOf([{ ...changed, drafted: EDITED }]).keep).toEqual([]);
  const since = { ...changed, drafted: DOC };
  expect(dueOf([since]).keep).toEqual([since]);
  expect(dueOf([opened])).toEqual({ keep: [], forget: [] });
});
