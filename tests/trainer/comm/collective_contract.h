// CollectiveContract: what every form of the host's collectives has to do. Each function is a test,
// called on every rank of a group.
#pragma once

#include "trainer/comm/collective.h"

namespace tidepool::trainer {

struct CollectiveContract {
  static void GathersAllShardsInPlace(Collective& group);
  static void GathersTwoByteElements(Collective& group);
  static void ScattersTheSumInRankOrder(Collective& group);
  static void ScattersBf16Sums(Collective& group);
  static void KeepsManyOperationsApart(Collective& group);
  static void BroadcastsRankZerosBytes(Collective& group);
  // The sum of inexact numbers, which must be equal on all ranks.
  static double SumsDoublesInRankOrder(Collective& group);
};

}  // namespace tidepool::trainer
