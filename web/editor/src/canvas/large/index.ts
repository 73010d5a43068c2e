/**
 * Draws graphs above 150 nodes: a time budget per frame, outlines of nodes, and stand-ins while the
 * viewport moves. Other folders import this file only.
 */
export { FarLinks } from "./FarLinks";
export { mountInBatches, hideUnmounted } from "./mountQueue";
export { NodeBoxes } from "./NodeBoxes";
export { Outline, useOutline } from "./Outline";
export { whenRendered, setViewportMoving } from "./renderQueue";
export { hideStandIns, showStandIns } from "./standIns";
