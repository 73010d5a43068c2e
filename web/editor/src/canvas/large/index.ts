/**
 * Draws graphs above 150 nodes: a time budget per frame, outlines of nodes, and stand-ins while the
 * viewport moves. Other folders import this file only.
 */
export { FarLinks } from "./FarLinks";
export { admit, entering } from "./mountQueue";
export { Places } from "./NodeBoxes";
export { Outline, useOutline } from "./Outline";
export { afterTurns, whileMoving } from "./renderQueue";
export { standAside, standIn } from "./standIns";
