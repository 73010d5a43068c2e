/** Requests the nodes of a sampler's step. */
import { asPrompt } from "../document/editorData";
import type { Doc } from "../document/model";
import { fieldsOf, type Json, listOf, numberFrom, textOf, textsOf } from "../json";
import { posted } from "./client";
import type * as messages from "./generated/messages";
import { messageFields, readMessages } from "./messageFields";

/** A node of a step; see `StepNode` in the schema. */
export interface StepNode {
  readonly name: string;
  readonly type: string;
  readonly title: string;
  readonly values: Readonly<Record<string, Json>>;
  /** Inputs linked to other nodes of the step, as node name and output. */
  readonly links: Readonly<Record<string, readonly [string, number]>>;
  /** Inputs that use the link of another node's input, as node id and input. */
  readonly sources: Readonly<Record<string, readonly [string, string]>>;
}

export interface WrittenStep {
  readonly nodes: readonly StepNode[];
  readonly end: string;
  readonly passedBy: readonly string[];
}

export async function writtenStep(prompt: Doc, node: string): Promise<WrittenStep> {
  const body = { prompt: asPrompt(prompt), node } satisfies messages.UnfoldBody;
  const step = messageFields<messages.WrittenStep>(await posted("katz/unfold", body));
  return {
    nodes: readMessages<messages.StepNode, StepNode>(step.nodes, (one) => ({
      name: textOf(one.name),
      type: textOf(one.type),
      title: textOf(one.title),
      values: fieldsOf(one.values),
      links: pairs(one.links, (raw) => numberFrom(raw)),
      sources: pairs(one.sources, (raw) => textOf(raw)),
    })),
    end: textOf(step.end),
    passedBy: textsOf(step.passed_by),
  };
}

function pairs<Second>(raw: unknown, read: (second: Json | undefined) => Second) {
  return Object.fromEntries(
    Object.entries(fieldsOf(raw as Json)).map(([name, pair]) => {
      const [first, second] = listOf(pair);
      return [name, [textOf(first), read(second)] as const];
    }),
  );
}
