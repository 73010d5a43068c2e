/** Reads a job as any client of the server may see it. Pure. */
import { fieldsOf, isObject, type Json, listOf, numberFrom, textOf } from "../json";
import { picturesOf, type StoredPicture } from "../server/client";

export interface SharedJob {
  readonly status: string;
  readonly over: boolean;
  /** Milliseconds since the epoch; 0 if it has not happened yet. */
  readonly created: number;
  readonly started: number;
  readonly ended: number;
  readonly error: string;
  readonly pictures: readonly StoredPicture[];
  readonly texts: readonly string[];
  /** The executed nodes with their values, without links. */
  readonly nodes: readonly {
    readonly id: string;
    readonly title: string;
    readonly values: readonly (readonly [string, string])[];
  }[];
}

const GOING_ON: Readonly<Record<string, string>> = { pending: "waiting", in_progress: "running" };

export function sharedJob(answer: Json): SharedJob {
  const fields = fieldsOf(answer);
  const outputs = Object.values(fieldsOf(fields.outputs)).filter(isObject);
  const kinds = outputs.map((made) =>
    Object.fromEntries(Object.entries(made).map(([kind, all]) => [kind, listOf(all)])),
  );
  const prompt = fieldsOf(fieldsOf(fields.workflow).prompt);
  const status = textOf(fields.status);
  return {
    status: GOING_ON[status] ?? status,
    over: GOING_ON[status] === undefined,
    created: numberFrom(fields.create_time),
    started: numberFrom(fields.execution_start_time),
    ended: numberFrom(fields.execution_end_time),
    error: textOf(fieldsOf(fields.execution_error).exception_message),
    pictures: kinds.flatMap(picturesOf),
    texts: kinds.flatMap(({ text }) => (text ?? []).map(String)),
    nodes: Object.entries(prompt).map(([id, raw]) => {
      const { class_type: type, _meta: meta, inputs } = fieldsOf(raw);
      return {
        id,
        title: textOf(fieldsOf(meta).title) || textOf(type),
        values: Object.entries(fieldsOf(inputs)).flatMap(([name, value]) =>
          typeof value === "object" ? [] : [[name, String(value)] as const],
        ),
      };
    }),
  };
}
