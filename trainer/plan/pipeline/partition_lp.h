// PartitionProgram: the mixed-integer program of Mobius (Feng et al., ASPLOS 2023, section 3.2) for
// one task, in the LP format that solvers read (CPLEX's; HiGHS, SCIP, Gurobi, GLPK).
//
// Any thread; pure. It lets anybody check the result of FindPartition
// (trainer/plan/pipeline/stage_partition.h): the optimum is the same.
// Constraints are as in trainer/plan/pipeline/stage_times.h, for as many logical stages as there
// are layers. The paper leaves out that each layer is in one stage, that stages are runs of layers,
// and that used stages come first. y_(i,j) says that layer i begins stage j > 1:
//   y_(i,j) = y_(i,j-1) + B_(i-1,j-1) - B_(i,j-1),   y_(i,1) = 0.
// With it the input of stage j is sum_i a_(i-1) y_(i,j), and j is used if sum_i y_(i,j) is 1.
// Weights of stage j stay for backward if stage j + N is not used; a constant larger than any step
// then disables (9).
// Names: B_i_j, y_i_j; tf_j_m and tb_j_m are t^f and t^b; pf_j and pb_j are P / B; xf_j and xb_j
// are the largest work memory of a stage's operators, divided by B. All values are in milliseconds;
// a size is given as the time of its copy.
#pragma once

#include <string>

#include "trainer/plan/pipeline/stage_table.h"

namespace tidepool::trainer {

std::string PartitionProgram(const StageTable& table);

}  // namespace tidepool::trainer
