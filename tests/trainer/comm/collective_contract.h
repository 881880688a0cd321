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
  // Sizes differ by pair, some are 0, and operations of other kinds go on around it.
  static void ExchangesPartsOfAnySize(Collective& group);
  // A rank that has nothing for anybody, and then nobody has anything.
  static void ExchangesNothing(Collective& group);
  // The last rank expects one element more than rank 0 sends: it is told, and the others hear of it
  // in this operation or the next one.
  static void TellsPartsThatDoNotFit(Collective& group);
  static void KeepsManyOperationsApart(Collective& group);
  static void BroadcastsRankZerosBytes(Collective& group);
  // The sum of inexact numbers, which must be equal on all ranks.
  static double SumsDoublesInRankOrder(Collective& group);
};

}  // namespace tidepool::trainer
