/** Draws a group frame around nodes. Its title moves it, its corner resizes it. */
import { type NodeProps, NodeResizeControl } from "@xyflow/react";
import { memo } from "react";
import { changeGroup, resizeGroup } from "../../document/groups";
import type { Doc } from "../../document/model";
import { useCanvas } from "../../state/canvas";
import { activeSession, useDocuments } from "../../state/documents";
import type { GroupNode } from "../layout";
import { Renaming } from "./Title";

export const Group = memo(function Group({
  id,
  data: { group, number },
  selected,
}: NodeProps<GroupNode>) {
  const renaming = useCanvas((canvas) => canvas.renaming === id);
  const change = (label: string, edit: (graph: Doc) => Doc) => {
    const session = activeSession();
    if (session !== null) useDocuments.getState().change(session.id, label, edit);
  };
  return (
    <section
      className={`group ${selected ? "selected" : ""}`}
      style={group.colour ? { borderColor: group.colour } : undefined}
    >
      <h3
        className="group-title"
        style={group.colour ? { background: `${group.colour.slice(0, 7)}44` } : undefined}
        onDoubleClick={() => useCanvas.setState({ renaming: id })}
      >
        {renaming ? (
          <Renaming
            name={group.title}
            done={(title) => {
              useCanvas.setState({ renaming: null });
              if (title !== null && title !== group.title)
                change("rename group", (graph) => changeGroup(graph, number, { title }));
            }}
          />
        ) : (
          group.title || "group"
        )}
      </h3>
      <NodeResizeControl
        className="resize"
        minWidth={80}
        minHeight={60}
        onResizeEnd={(_, { x, y, width, height }) =>
          change("resize group", (graph) =>
            resizeGroup(graph, number, {
              x,
              y,
              width: Math.round(width),
              height: Math.round(height),
            }),
          )
        }
      />
    </section>
  );
});
